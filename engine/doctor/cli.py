"""`shardline doctor`: is this machine fit, and what was proven on it?"""

import orjson
import typer

from engine.doctor import report
from engine.doctor.look import examine
from engine.doctor.report import Finding
from engine.options import DEFAULT_NATS, Deployment, Nats
from engine.service import run_process


def doctor(
    nats: Nats = DEFAULT_NATS,
    deployment: Deployment = "default",
    json: bool = typer.Option(False, "--json", help="One JSON object."),
) -> None:
    """Look at devices, versions, broker, ports, disk, memory and clock. Exit code 1 when something must be mended."""

    async def run() -> None:
        findings = await examine(nats, deployment)
        if json:
            print(orjson.dumps(report.as_dict(findings)).decode())
        else:
            print("\n".join(lines(findings)))
        raise SystemExit(report.exit_code(findings))

    run_process(run)


def lines(findings: list[Finding]) -> list[str]:
    """For people: a line each, and one more where there is something to do."""
    shown: list[str] = []
    for finding in findings:
        shown.append(f"{finding.level:<8} {finding.area:<9} {finding.what}")
        shown += [f"{'':<18} -> {finding.todo}"] if finding.todo else []
    problems = sum(finding.level == "problem" for finding in findings)
    return [*shown, f"{problems} problems" if problems != 1 else "1 problem"]
