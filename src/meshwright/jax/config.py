"""``jax.config`` and the settings that are context managers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from meshwright.core.dtypes import config as own
from meshwright.core.source import here
from meshwright.errors import MeshwrightError
from meshwright.jax import devices

# Settings of JAX that say how it compiles, caches, logs or transfers, none of which changes what is computed here, with
# JAX's defaults. All products are computed in the full precision of their dtype.
ACCEPTED: dict[str, Any] = {
    "allow_f16_reductions": True,
    "array_garbage_collection_guard": None,
    "auto_pcast": True,
    "check_tracer_leaks": False,
    "checking_leaks": False,
    "compilation_cache_dir": None,
    "compilation_cache_max_size": -1,
    "debug_key_reuse": False,
    "default_matmul_precision": None,
    "dynamic_shapes": False,
    "enable_checks": False,
    "enable_compilation_cache": True,
    "enable_custom_prng": False,
    "explain_cache_misses": False,
    "log_compiles": False,
    "numpy_dtype_promotion": "standard",
    "numpy_rank_promotion": "allow",
    "no_execution": False,
    "no_tracing": False,
    "persistent_cache_enable_xla_caches": "",
    "persistent_cache_min_compile_time_secs": 1.0,
    "persistent_cache_min_entry_size_bytes": 0,
    "platform_name": "",
    "platforms": None,
    "remove_size_one_mesh_axis_from_type": False,
    "softmax_custom_jvp": True,
    "jax2tf_associative_scan_reductions": False,
    "thread_guard": False,
    "traceback_filtering": "auto",
    "transfer_guard": None,
    "transfer_guard_device_to_device": None,
    "transfer_guard_device_to_host": None,
    "transfer_guard_host_to_device": None,
    "use_shardy_partitioner": True,
}

# Settings that have one value here, and why.
FIXED: dict[str, tuple[Any, str]] = {
    "debug_infs": (False, "mnp.isfinite says where a number is not finite"),
    "debug_nans": (False, "mnp.isnan says where a number is NaN"),
    "default_prng_impl": ("threefry2x32", "random numbers are those of threefry, which do not depend on the mesh"),
    "disable_jit": (False, "a function without jax.jit runs op by op"),
    "legacy_prng_key": ("allow", "keys of both kinds are taken"),
    "threefry_partitionable": (True, "random numbers do not depend on the mesh"),
}


class JaxConfig:
    """``jax.config``: settings by their names in JAX, with or without ``jax_``.

    >>> import meshwright.jax as jax
    >>> jax.config.update("jax_platforms", "cpu")
    >>> jax.config.jax_enable_x64, jax.config.jax_platforms
    (False, 'cpu')
    """

    def __init__(self) -> None:
        self.__dict__["_values"] = {}

    def update(self, name: str, value: Any) -> None:
        """Set ``name`` to ``value`` for the whole process."""
        setting = name.removeprefix("jax_")
        if setting == "num_cpu_devices":
            devices.set_devices(None if value == -1 else value)
        elif setting in ACCEPTED:
            self._values[setting] = value
        elif setting in FIXED:
            fixed, why = FIXED[setting]
            if value != fixed:
                raise MeshwrightError(
                    f"The setting {name} cannot be {value!r}.", where=here(), why=why, fix=f"leave it at {fixed!r}"
                )
        else:
            own.update(setting, value)

    def __getattr__(self, name: str) -> Any:
        setting = name.removeprefix("jax_")
        if setting in ACCEPTED:
            return self._values.get(setting, ACCEPTED[setting])
        if setting in FIXED:
            return FIXED[setting][0]
        if setting == "num_cpu_devices":
            return -1 if devices.available.count is None else devices.available.count
        return getattr(own, setting)

    def __setattr__(self, name: str, value: Any) -> None:
        self.update(name, value)

    def read(self, name: str) -> Any:
        """The value of a setting."""
        return getattr(self, name)

    def values(self) -> dict[str, Any]:
        """All settings by their names in JAX."""
        names = (*ACCEPTED, *FIXED, "enable_x64", "default_device", "num_cpu_devices")
        return {f"jax_{name}": getattr(self, name) for name in names}


config = JaxConfig()


def setting(name: str) -> Callable[..., AbstractContextManager[None]]:
    """The context manager of a setting: inside of it, the setting has the value given.

    >>> with setting("default_matmul_precision")("highest"):
    ...     config.jax_default_matmul_precision
    'highest'
    """

    @contextmanager
    def changed(new_val: Any = True) -> Iterator[None]:
        before = getattr(config, name)
        config.update(name, new_val)
        try:
            yield
        finally:
            config.update(name, before)

    changed.__name__ = changed.__qualname__ = name
    changed.__doc__ = f"Inside, the setting ``{name}`` has the value given."
    return changed
