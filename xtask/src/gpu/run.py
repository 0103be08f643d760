"""Checks and measures tch-amp's CUDA kernels with the programs beside this file.

Writes results.json, results.md and output.txt (all that the programs printed). Ends with 1 where a step failed.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Seconds for all steps together.
LIMIT = 460
MACHINE = """
import json, torch
gpu = torch.cuda.get_device_properties(0)
print(json.dumps({"gpu": gpu.name, "capability": f"{gpu.major}.{gpu.minor}", "memory_bytes": gpu.total_memory,
                  "torch": torch.__version__, "cuda": torch.version.cuda}))
"""
# How far a level's accuracy may be from that of FP32 on the CPU.
ALLOWED = 0.01


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="run all that needs no GPU, shortened")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "results")), help="folder of the results")
    return parser.parse_args()


def library_path():
    """The folders of libtorch and of the CUDA libraries that pip installed with it."""
    torch = importlib.util.find_spec("torch")
    if torch is None:
        sys.exit("error: this Python has no torch. Install torch 2.11.0, or give --cpu.")
    torch = Path(torch.origin).parent
    folders = [torch / "lib", *sorted(torch.parent.glob("nvidia/*/lib"))]
    return ":".join(map(str, folders))


class Runner:
    def __init__(self, out, environment):
        self.out, self.environment = out, environment
        self.start = time.monotonic()
        self.steps = []
        self.output = (out / "output.txt").open("w")

    def run(self, name, command, timeout, numbers=None):
        """Runs one command; `numbers` is the JSON file that it writes."""
        start = time.monotonic()
        left = LIMIT - (start - self.start)
        if left < 1:
            return self.add(name, "not run", 0, "no time was left")
        try:
            done = subprocess.run(
                list(map(str, command)), env=self.environment, timeout=min(timeout, left), text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )
            text, result = done.stdout, "passed" if done.returncode == 0 else f"failed ({done.returncode})"
        except subprocess.TimeoutExpired as expired:
            text = expired.stdout or b""
            text = text.decode(errors="replace") if isinstance(text, bytes) else text
            result = "timed out"
        except OSError as error:
            text, result = str(error), "failed"
        self.output.write(f"==> {name}\n{text}\n")
        self.output.flush()
        step = self.add(name, result, time.monotonic() - start, text)
        if numbers is not None and numbers.exists():
            step["numbers"] = json.loads(numbers.read_text())
            numbers.unlink()
        return step

    def add(self, name, result, seconds, text=""):
        step = {"name": name, "result": result, "seconds": round(seconds, 2)}
        if result != "passed":
            step["output"] = text[-2000:]
        self.steps.append(step)
        print(f"{name}: {result} ({seconds:.1f} s)", flush=True)
        step["text"] = text
        return step


def tests(runner, program, cpu):
    """Each test of a program is a step. Of the CPU's own, only what can also run on a GPU."""
    if program == "emulated_gpu":
        names = ["training_is_that_of_the_cpu"]
    else:
        listed = runner.run(f"{program}: list of tests", [HERE / program, "--list"], 60)
        names = [line.removesuffix(": test") for line in listed["text"].splitlines() if line.endswith(": test")]
        if not names:
            listed["result"], listed["output"] = "failed (no tests)", listed["text"][-2000:]
    for name in names:
        step = runner.run(name.replace("_", " "), [HERE / program, "--exact", name, "--nocapture"], 90)
        if "\nskipped: " in step["text"] and not cpu:
            step["result"], step["output"] = "failed (skipped)", step["text"][-2000:]
        elif "1 passed" not in step["text"] and step["result"] == "passed":
            step["result"], step["output"] = "failed (did not run)", step["text"][-2000:]


def mnist(runner, cpu, scratch):
    def train(name, *options):
        return runner.run(name, [HERE / "mnist", *options, "--json", scratch], 100, scratch)

    if cpu:
        train("MNIST, short", "--opt-level", "O2", "--epochs", 1, "--limit", 2000)
        return
    baseline = train("MNIST in FP32 on the CPU", "--opt-level", "O0")
    for dtype in ["f16", "bf16"]:
        step = train(f"MNIST at all levels, {dtype}", "--all-levels", "--dtype", dtype, "--device", "cuda")
        if "numbers" not in baseline or "numbers" not in step:
            continue
        expected = baseline["numbers"]["runs"][0]["accuracy"]
        for run in step["numbers"]["runs"]:
            if abs(run["accuracy"] - expected) > ALLOWED:
                step["result"] = "failed (accuracy)"
                step["output"] = f"{run['level']}: {run['accuracy']} where the CPU has {expected}"


def table(rows):
    """A table of dictionaries with the same keys."""
    keys = list(rows[0])
    text = [" | ".join(keys), " | ".join("---" for _ in keys)]
    for row in rows:
        text.append(" | ".join(f"{row[key]:.4g}" if isinstance(row[key], float) else str(row[key]) for key in keys))
    return "\n".join(f"| {line} |" for line in text)


def write(runner, machine):
    for step in runner.steps:
        del step["text"]
    document = {"machine": machine, "steps": runner.steps}
    (runner.out / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    parts = ["# Results", table([{key: step[key] for key in ["name", "result", "seconds"]} for step in runner.steps])]
    if machine:
        parts.insert(1, table([machine]))
    for step in runner.steps:
        for rows in step.get("numbers", {}).values():
            if isinstance(rows, list) and rows:
                parts += [f"## {step['name']}", table(rows)]
        if "output" in step:
            parts += [f"## {step['name']}: {step['result']}", f"```\n{step['output'].strip()}\n```"]
    (runner.out / "results.md").write_text("\n\n".join(parts) + "\n")


def main():
    options = arguments()
    environment = dict(os.environ)
    if not options.cpu:
        environment["LD_LIBRARY_PATH"] = library_path()
        environment["TCH_AMP_TEST_DEVICE"] = "cuda"
    options.out.mkdir(parents=True, exist_ok=True)
    scratch = options.out.resolve() / "numbers.json"
    runner = Runner(options.out, environment)
    machine = {}
    if not options.cpu:
        step = runner.run("the machine", [sys.executable, "-c", MACHINE], 90)
        if step["result"] == "passed":
            machine = json.loads(step["text"].splitlines()[-1])
    tests(runner, "gpu", options.cpu)
    tests(runner, "emulated_gpu", options.cpu)
    bench = ["--shrink", 100, "--rounds", 1] if options.cpu else ["--cuda"]
    runner.run("one optimizer step", [HERE / "step", *bench, "--json", scratch], 120, scratch)
    mnist(runner, options.cpu, scratch)
    write(runner, machine)
    failed = [step["name"] for step in runner.steps if step["result"] != "passed"]
    print(f"{len(runner.steps) - len(failed)} of {len(runner.steps)} steps passed; results are in {options.out}")
    sys.exit(1 if failed else 0)


main()
