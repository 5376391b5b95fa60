"""JAX's own programs (jaxprs) as functions of Meshwright."""
