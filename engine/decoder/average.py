"""A moving average that starts at its first sample."""


class Average:
    """Forgets by sample, not by time."""

    def __init__(self, forget: float = 0.9) -> None:
        """`forget`: weight of everything older, per sample."""
        self._forget = forget
        self._weight = self._sum = 0.0

    @classmethod
    def starting(cls, value: float, weight: float) -> "Average":
        """One that holds a first guess as firmly as so many samples."""
        made = cls()
        made._weight, made._sum = weight, weight * value
        return made

    def observe(self, value: float) -> None:
        """One more sample."""
        self._weight = self._forget * self._weight + 1.0
        self._sum = self._forget * self._sum + value

    @property
    def value(self) -> float:
        """The average; 0.0 before the first sample."""
        return self._sum / self._weight if self._weight else 0.0
