"""Everything that the report needs, one after the other, then the report: `make bench`, `make bench QUICK=1`.

What fails is named at the end, and the report says of it that it was not measured. QUICK has one round of each and
leaves out what takes long: it shows that all of it runs, its figures are not worth keeping.
"""

import argparse
import subprocess
import sys
import time

BENCHES: tuple[tuple[str, tuple[str, ...], tuple[str, ...] | None], ...] = (  # with options, and quick ones
    ("parity", (), ("--rounds", "1")),
    ("splits", (), ("--rounds", "1")),
    ("pipeline", (), ("--rounds", "1", "--tokens", "24")),
    ("rewind", (), ("--count", "5")),
    ("speculation", (), ("--rounds", "1", "--tokens", "24")),
    ("longer", (), None),
    ("wan", (), ("--rounds", "1", "--tokens", "16", "--hops-ms", "0", "50")),
    ("users", (), ("--rounds", "1", "--tokens", "16", "--profiles", "fast")),
    ("gateway", (), None),
    ("wire", (), ()),
    ("activations", (), ("--tokens", "32")),
    ("sampling", (), ()),
    ("constraint", (), ()),
    ("kv_precision", (), None),
    ("static_slots", (), ("--rounds", "3")),
    ("standby", (), ("--rounds", "1")),
    ("chaos", ("--minutes", "15"), None),
    ("simulate", (), ("--parts", "check")),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    failed: list[str] = []
    for name, options, few in BENCHES:
        if quick and few is None:
            continue
        began = time.monotonic()
        command = [sys.executable, "-m", f"bench.{name}", *((few or ()) if quick else options)]
        print(f"-- {' '.join(command[1:])}", flush=True)
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
        print(f"-- {name}: {time.monotonic() - began:.0f} s", flush=True)
    subprocess.run([sys.executable, "-m", "bench.report"], check=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
