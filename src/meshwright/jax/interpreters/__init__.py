"""``jax.interpreters``: JAX's own transformations, which are not here."""

from meshwright.jax.interpreters import partial_eval as partial_eval
