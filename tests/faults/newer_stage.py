"""`stage-run` of a version to come: it speaks another protocol."""

from engine.contract import control

control.PROTOCOL_VERSION += 1

from stages.cli import app  # noqa: E402  reads the version

app()
