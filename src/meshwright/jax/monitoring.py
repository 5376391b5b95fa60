"""``jax.monitoring``: events and durations that libraries report, and functions that hear of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_LISTENERS: dict[str, list[Callable[..., None]]] = {"event": [], "duration": [], "scalar": [], "span": []}


def _tell(kind: str, *what: Any, **more: Any) -> None:
    for listener in _LISTENERS[kind]:
        listener(*what, **more)


def record_event(event: str, **kwargs: str | int) -> None:
    """Report that something happened.

    >>> record_event("/example/started")
    """
    _tell("event", event, **kwargs)


def record_event_duration_secs(event: str, duration: float, **kwargs: str | int) -> None:
    """Report how long something took."""
    _tell("duration", event, duration, **kwargs)


def record_scalar(event: str, value: float | int, **kwargs: str | int) -> None:
    """Report a number."""
    _tell("scalar", event, value, **kwargs)


def record_event_time_span(event: str, start_time: float, end_time: float, **kwargs: str | int) -> None:
    """Report from when to when something went on."""
    _tell("span", event, start_time, end_time, **kwargs)


def register_event_listener(callback: Callable[..., None]) -> None:
    """Let ``callback(event)`` hear of events."""
    _LISTENERS["event"].append(callback)


def register_event_duration_secs_listener(callback: Callable[..., None]) -> None:
    """Let ``callback(event, seconds)`` hear of durations."""
    _LISTENERS["duration"].append(callback)


def register_scalar_listener(callback: Callable[..., None]) -> None:
    """Let ``callback(event, value)`` hear of numbers."""
    _LISTENERS["scalar"].append(callback)


def register_event_time_span_listener(callback: Callable[..., None]) -> None:
    """Let ``callback(event, start, end)`` hear of spans of time."""
    _LISTENERS["span"].append(callback)


def clear_event_listeners() -> None:
    """Let nothing hear of events any more."""
    for listeners in _LISTENERS.values():
        listeners.clear()


__all__ = [
    "clear_event_listeners",
    "record_event",
    "record_event_duration_secs",
    "record_event_time_span",
    "record_scalar",
    "register_event_duration_secs_listener",
    "register_event_listener",
    "register_event_time_span_listener",
    "register_scalar_listener",
]
