"""Samples in Prometheus' text format."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from engine.contract.figures import Histogram
from engine.monitoring.metrics import Metric, Sample


def families(samples: Iterable[Sample]) -> list[Family]:
    """One family per metric, in the order of their first samples."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample.metric, []).append(sample)
    return [_family(metric, found) for metric, found in by_metric.items()]


def _family(metric: Metric, samples: Sequence[Sample]) -> Family:
    labels = list(samples[0].labels)
    match metric.kind:
        case "counter":
            family = CounterMetricFamily(metric.name, metric.help, labels=labels)
        case "gauge":
            family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
        case "histogram":
            family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    for sample in samples:
        values = [sample.labels[name] for name in labels]
        if isinstance(family, HistogramMetricFamily):
            if isinstance(sample.value, Histogram) and sample.value.bounds:  # else of an older version
                family.add_metric(values, *_buckets(sample.value))
        elif not isinstance(sample.value, Histogram):
            family.add_metric(values, sample.value)
    return family


def _buckets(histogram: Histogram) -> tuple[list[tuple[str, float]], float]:
    """Cumulative, as Prometheus wants them, and the sum."""
    bounds = [*map(str, histogram.bounds), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True)), histogram.total


class Scrape(Collector):
    """The samples of one scrape, as a registry wants them."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Family]:
        """See Collector."""
        return families(self._samples)


def registry_of(samples: Iterable[Sample]) -> CollectorRegistry:
    """A registry with just these."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrape(samples))
    return registry
