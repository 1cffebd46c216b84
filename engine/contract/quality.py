"""What fewer bits cost, as a manifest tells it, for people."""

from engine.contract.manifest import Manifest


def quality_lines(manifest: Manifest) -> list[tuple[str, str]]:
    """For people: what, and how much."""
    found = manifest.quality
    if not found:
        return []
    return [
        ("perplexity", f"{found['perplexity']:.2f}, of the source {found['source_perplexity']:.2f}"),
        ("divergence from the source", f"{found['divergence']:.4f} nats a token"),
        (
            "same next token as the source",
            f"{found['same_token']:.1%} of {found['positions']:.0f}, "
            f"{found['tokens_until_difference']:.1f} in a row on average",
        ),
    ]
