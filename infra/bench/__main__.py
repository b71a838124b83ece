"""`python -m infra.bench [--peers] [overhead] [counts] [sessions] [imports]`: all, or the parts that are named."""

import argparse
import os
import platform
import sys

PARTS = ("overhead", "counts", "sessions", "imports")


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench")
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all when none is named")
    parser.add_argument("--peers", action="store_true", help="measure other frameworks, too; installs them once")
    chosen = parser.parse_args()
    if unknown := sorted({*chosen.parts} - {*PARTS}):
        parser.error(f"there is no part {', '.join(unknown)}")
    parts = chosen.parts or PARTS
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}", flush=True)
    if "overhead" in parts:
        from infra.bench import overhead

        overhead.show(peers=chosen.peers)
    if "counts" in parts:
        from infra.bench import counts

        counts.show(peers=chosen.peers)
    if "sessions" in parts:
        from infra.bench import sessions

        sessions.show()
    if "imports" in parts:
        from infra.bench import imports

        imports.show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
