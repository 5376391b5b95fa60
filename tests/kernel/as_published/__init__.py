"""Kernels in the style of Pallas' guides and of published ones, with JAX's imports; run by JAX and by us alike."""
