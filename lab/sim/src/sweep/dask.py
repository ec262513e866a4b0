"""The driver of `evenkeel-lab sim sweep --on dask`, which starts it with what it wants, as JSON.

It submits one task for each part of the sweep to Dask, and prints `done N` for each part that has its
rows, and `over` at the end. Queueing and retries are Dask's. Where Dask's own configuration names a
scheduler (DASK_SCHEDULER_ADDRESS), the tasks go there; otherwise Dask is started in this process, on
this machine.
"""

import json
import os
import subprocess
import sys
import threading

# Says that this Python has no Dask.
NO_DASK = 3


def simulate(command, directory, log, part):
    """One part; an exception lets Dask try again."""
    with open(f"{log}{part}", "ab") as output:
        done = subprocess.run(
            [*command, str(part)],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"part {part} ended with {done.returncode}: see {log}{part}")
    return part


def end_with_parent():
    """What has started this process holds its standard input open."""
    sys.stdin.read()
    os._exit(1)


def main():
    try:
        import dask
        from distributed import Client, LocalCluster, as_completed
    except ImportError as why:
        print(why, file=sys.stderr)
        return NO_DASK
    asked = json.loads(sys.argv[1])
    threading.Thread(target=end_with_parent, daemon=True).start()
    address = dask.config.get("scheduler-address", None)
    if address is None:
        # What Dask leaves behind goes away with the folder of the sweep.
        dask.config.set({"temporary-directory": os.path.dirname(asked["log"])})
        # Each task only waits for a process, so threads will do.
        address = LocalCluster(
            n_workers=1,
            threads_per_worker=asked["at_once"] or os.cpu_count(),
            processes=False,
            dashboard_address=None,
        )
    with Client(address) as client:
        print("at", client.scheduler.address, flush=True)
        submitted = [
            client.submit(
                simulate,
                asked["command"],
                asked["directory"],
                asked["log"],
                part,
                retries=asked["retries"],
                pure=False,
            )
            for part in range(asked["parts"])
        ]
        for future in as_completed(submitted):
            if future.status == "finished":
                print("done", future.result(), flush=True)
    print("over", flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # Dask's threads may wait for each other at the interpreter's end.
    os._exit(code)
