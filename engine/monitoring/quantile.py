"""What a histogram says of the last minute, for people."""

from itertools import accumulate

from engine.contract.figures import Histogram


def since(before: Histogram, after: Histogram) -> Histogram:
    """What was observed between two states of one histogram; `after` where they are not of one."""
    if before.bounds != after.bounds or any(b > a for b, a in zip(before.counts, after.counts, strict=True)):
        return after
    counts = tuple(a - b for b, a in zip(before.counts, after.counts, strict=True))
    return Histogram(bounds=after.bounds, counts=counts, total=after.total - before.total)


def quantile(histogram: Histogram, share: float) -> float | None:
    """The size below which this share of the observations lies, evenly spread within a bucket; None without any.

    What lies above every bound counts as the last bound.
    """
    wanted, low = share * sum(histogram.counts), 0.0
    if not wanted:
        return None
    for bound, count, upto in zip(histogram.bounds, histogram.counts, accumulate(histogram.counts), strict=False):
        if upto >= wanted:
            return low + (bound - low) * (wanted - (upto - count)) / count
        low = bound
    return low
