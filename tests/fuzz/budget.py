"""How many examples a property is tried on: a few, the same ones each time, or as many as `make fuzz` asks for."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

ASKED_FOR = int(os.environ.get("SGPVAE_FUZZ", "0"))


def examples(number: int) -> settings:
    """
    The settings of a property.

    :param number: Examples in `make test`, where all properties together may take a minute.
    """
    return settings(
        max_examples=ASKED_FOR or number,
        # hours of them are different each time
        derandomize=not ASKED_FOR,
        database=settings.default.database if ASKED_FOR else None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
