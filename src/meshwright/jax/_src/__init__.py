"""The few private names of JAX that flax imports; programs of users have no need of them."""
