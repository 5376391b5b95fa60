"""A page around what is drawn."""

from __future__ import annotations

from html import escape


def page(title: str, body: str) -> str:
    """A whole page around a fragment."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<title>{escape(title)}</title></head>\n<body style="margin:24px;font-family:system-ui,sans-serif">'
        f'\n<h1 style="font-size:16px">{escape(title)}</h1>\n{body}\n</body></html>\n'
    )
