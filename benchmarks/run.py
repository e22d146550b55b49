"""`make bench`: measure everything and rewrite docs/benchmarks.md, one script after the other."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

QUICK = ("storage_speed", "throughput", "real_input", "chaos", "leaderboard")
LONG = ("backtests", "best_arm", "neural_ablation")


def main() -> None:
    """Run the scripts named, or all quick ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scripts", nargs="*", choices=[*QUICK, *LONG, []], help="default: the quick ones")
    parser.add_argument("--all", action="store_true", help="the long ones too (hours)")
    options = parser.parse_args()
    chosen = options.scripts or (QUICK + LONG if options.all else QUICK)
    failed = []
    for script in chosen:
        started = time.monotonic()
        print(f"=== {script}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{script}"], check=False).returncode:
            failed.append(script)
        print(f"=== {script}: {time.monotonic() - started:.0f} s", flush=True)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
