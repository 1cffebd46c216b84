# pyright: basic
"""Which devices OpenVINO finds here, and what it says of them."""

from contextlib import suppress
from typing import Final

import openvino as ov

from engine.contract.facts import Device
from stages.openvino_errors import device_errors

SHOWN: Final = (  # properties that decide how a shard runs
    "DEVICE_TYPE",
    "DEVICE_ARCHITECTURE",
    "DEVICE_UUID",
    "GPU_DEVICE_TOTAL_MEM_SIZE",
    "GPU_DRIVER_VERSION",
    "NPU_DRIVER_VERSION",
    "NPU_DEVICE_TOTAL_MEM_SIZE",
    "INFERENCE_PRECISION_HINT",
    "KV_CACHE_PRECISION",
    "RANGE_FOR_STREAMS",
)


def list_devices() -> tuple[Device, ...]:
    """Every device that OpenVINO finds. Raises DeviceError."""
    with device_errors("OpenVINO cannot list its devices"):
        core = ov.Core()
        return tuple(_describe(core, name) for name in core.available_devices)


def describe_device(name: str) -> Device:
    """One of them, as --device takes it. Raises DeviceError."""
    with device_errors(f"OpenVINO does not say what {name} is"):
        return _describe(ov.Core(), name)


def _describe(core: ov.Core, name: str) -> Device:
    properties: dict[str, str] = {}
    for key in SHOWN:
        with suppress(RuntimeError, TypeError):  # a device has the ones it has, and Python cannot show each
            properties[key] = _word(core.get_property(name, key))
    capabilities: list[str] = []
    with suppress(RuntimeError):
        capabilities = list(core.get_property(name, "OPTIMIZATION_CAPABILITIES"))
    full_name = ""
    with suppress(RuntimeError):
        full_name = str(core.get_property(name, "FULL_DEVICE_NAME"))
    plugin = ", ".join(str(version.build_number) for version in core.get_versions(name).values())
    return Device(
        name=name, full_name=full_name, plugin=plugin, capabilities=tuple(capabilities), properties=properties
    )


def _word(value: object) -> str:
    return value.get_type_name() if isinstance(value, ov.Type) else str(getattr(value, "name", value))
