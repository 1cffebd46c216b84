"""How a shard is run: what a user may choose, and what that means to OpenVINO."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.contract.control import KvPrecision, Profile
from engine.contract.errors import UsageError
from stages.memory import KvShare
from stages.runner import RunnerKind
from stages.slot import SPARE, Spare

MIB: Final = 1 << 20
NPU: Final = "NPU"
U8_KEYS: Final = "BY_TOKEN"  # BY_CHANNEL, the default, lets a rejected draft change accepted keys (docs/decisions/0010)
EXACT_STEP_TOKENS: Final = 64  # steps of more tokens may take other matrix kernels (docs/decisions/0005)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerOptions:
    """Choices of one runner."""

    kind: RunnerKind = "paged"
    profile: Profile = "exact"
    device: str = "CPU"
    threads: int = 0  # 0: as the device likes
    kv_bytes: int | KvShare = 512 * MIB  # paged: size of the pool, or which part of free memory
    kv_precision: KvPrecision | None = None  # None: as the profile likes it
    slots: int = 8  # stateful: sequences at once (static: as the split was made)
    spare: Spare = SPARE  # stateful: rejected positions that a slot may carry
    cache: Path | None = None  # compiled models are kept there
    dynamic_quantization: bool = True  # activations in 8 bits where the CPU has instructions for it; off to compare

    def __post_init__(self) -> None:
        wanted = self.kv_precision
        if self.profile == "exact" and wanted not in (None, "f32"):
            raise UsageError(f"profile exact keeps its KV cache in f32: --kv-precision {wanted} needs --profile fast")
        if self.profile == "fast" and wanted == "f32":
            raise UsageError("profile fast keeps its KV cache in f16 or u8: for f32 take --profile exact")
        if self.device.startswith(NPU) and self.kind != "static":
            raise UsageError(f"an NPU runs shards of fixed shapes only: --device {self.device} needs --runner static")
        if self.kind != "paged" and wanted == "u8":
            raise UsageError("--kv-precision u8 needs --runner paged")

    @property
    def cache_precision(self) -> KvPrecision:
        """What the KV cache is kept in."""
        return self.kv_precision or ("f32" if self.profile == "exact" else "f16")


def compile_properties(options: RunnerOptions) -> dict[str, object]:
    """Compile-time properties of the device.

    exact: f32 throughout, the only setting under which cutting the model changes no bit.
    fast: the plugin's own inference precision (bf16 where the CPU has it) and a KV cache of 16 bits, or of 8.
    """
    cache: dict[str, object] = {} if options.cache is None else {"CACHE_DIR": str(options.cache)}
    if options.device.startswith(NPU):
        return cache  # it knows none of the others
    properties: dict[str, object] = {"KV_CACHE_PRECISION": options.cache_precision, **cache}
    if options.cache_precision == "u8":
        properties["KEY_CACHE_QUANT_MODE"] = U8_KEYS
    if options.profile == "exact":
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    # The plugin pins its threads to the first cores it sees: two workers on one machine would share one core.
    properties["ENABLE_CPU_PINNING"] = False
    if not options.dynamic_quantization:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = "0"
    if options.threads:
        properties["INFERENCE_NUM_THREADS"] = options.threads
    return properties


def min_row_tokens(options: RunnerOptions) -> int:
    """Shortest row the runner wants: rows of one token take another paged attention kernel (docs/decisions/0005)."""
    return 2 if (options.kind, options.profile) == ("paged", "exact") else 1


def max_step_tokens(options: RunnerOptions) -> int:
    """Most tokens of one step whose results do not depend on how many there are; 0: not promised anyway."""
    return EXACT_STEP_TOKENS if (options.kind, options.profile) == ("paged", "exact") else 0
