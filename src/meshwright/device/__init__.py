"""Device programs: values on devices, nested pmap, device maps, and transforms that compose."""
