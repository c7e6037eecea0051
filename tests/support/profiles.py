"""How many examples Hypothesis tries: few in ``make test``, many in ``make test-all``."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings


def register_profiles() -> None:
    """Register the profiles of ``--hypothesis-profile`` and load the default.

    The default draws new examples in each run; the other two are reproducible.
    """
    for name, count in {"quick": 10, "thorough": 50, "default": 100}.items():
        settings.register_profile(
            name,
            deadline=None,
            derandomize=name != "default",
            max_examples=count,
            print_blob=True,
            suppress_health_check=[HealthCheck.too_slow],
        )
    settings.load_profile("default")


def examples(number: int, **others: Any) -> settings:
    """Try more or fewer than the 100 examples of a test without this decorator.

    The profile scales both alike.
    """
    return settings(max_examples=max(1, number * settings().max_examples // 100), **others)
