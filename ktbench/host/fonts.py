"""Which fonts are installed."""

from __future__ import annotations

from ktbench.spec.errors import RequestError, did_you_mean


def require_font(key: str, family: str) -> None:
    """Raises RequestError for a family, named by a key, that is not installed."""
    # matplotlib takes a second to load: only for those who name a font.
    from matplotlib.font_manager import FontProperties, findfont, fontManager

    try:
        findfont(FontProperties(family=[family]), fallback_to_default=False)
    except ValueError:
        known = sorted({font.name for font in fontManager.ttflist})
        raise RequestError(f"{key}={family}: not installed{did_you_mean(family, known)}") from None
