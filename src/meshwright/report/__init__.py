"""What people look at: pictures of shardings and meshes as text, in colour and as HTML."""
