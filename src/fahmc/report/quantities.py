"""Numbers as a reader wants them: as many digits as mean something, bytes and seconds in fitting units."""

from __future__ import annotations

import math


def rounded(value: float, spread: float) -> str:
    """Return ``value`` to a hundredth of ``spread`` (two digits inside one standard deviation).

    Examples
    --------
    >>> rounded(-0.123456, 0.21), rounded(1234.56, 30.0), rounded(2.0, 0.0)
    ('-0.123', '1234.6', '2')
    """
    if not math.isfinite(value):
        return "n/a" if math.isnan(value) else str(value)
    if not (math.isfinite(spread) and spread > 0) or abs(value) > 1e7 or spread < 1e-6:
        return f"{value:.4g}"
    return f"{value:.{min(8, max(0, 2 - math.floor(math.log10(spread))))}f}"


def in_bytes(count: float) -> str:
    """Return a number of bytes in units of 1000.

    Examples
    --------
    >>> in_bytes(12), in_bytes(48_000), in_bytes(1_230_000_000)
    ('12 B', '48.0 kB', '1.23 GB')
    """
    return f"{count:.0f} B" if count < 1000 else _scaled(count, (" B", " kB", " MB", " GB", " TB", " PB"))


def in_words(count: float) -> str:
    """Return a count, above a million in words.

    Examples
    --------
    >>> in_words(1500), in_words(12_345_678)
    ('1,500', '12.3 million')
    """
    if count < 1e6:
        return f"{count:,.0f}"
    return _scaled(count / 1e6, (" million", " billion", " trillion"))


def in_time(seconds: float) -> str:
    """Return a duration.

    Examples
    --------
    >>> in_time(0.5), in_time(42.0), in_time(200.0), in_time(7322.0)
    ('0.50 s', '42.0 s', '3 min 20 s', '2 h 02 min')
    """
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds >= 100 else f"{seconds:.{1 if seconds >= 10 else 2}f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _scaled(count: float, units: tuple[str, ...]) -> str:
    """Return ``count`` with three significant digits in the largest unit (a power of 1000) that it reaches."""
    power = 0
    # 999.95 and above would be printed as 1000 of the smaller unit.
    while count >= 999.5 and power < len(units) - 1:
        count, power = count / 1000, power + 1
    digits = 2 if count < 9.995 else 1 if count < 99.95 else 0
    return f"{count:.{digits}f}{units[power]}"
