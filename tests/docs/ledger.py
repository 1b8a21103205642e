"""The test of every command and every block of Python that README and pages show.

A command is typed by a test as it stands (NOW, in `make test`; LATER, in `make soak`), or it is here with the reason
why not, and with the test that runs its like. A new one fails tests/docs/test_snippets.py until it has its line.
"""

from __future__ import annotations

NOW = (
    "fedbalancer list methods",
    "fedbalancer list tasks",
    "fedbalancer list settings",
    "fedbalancer data list",
    "fedbalancer privacy plan --epsilon 8 --rounds 140",
    "fedbalancer privacy plan --noise 7.11 --rounds 140",
    "fedbalancer flower new my_app",
    "fedbalancer flower new my_device --framework litert",
    "fedbalancer doctor",
    "fedbalancer doctor synthetic --set optimizer=adamw",
)
"""Typed in an empty folder, in this order."""

LATER = (
    "fedbalancer run synthetic --method fedbalancer --set w=5 --set p=0.75",
    "fedbalancer run synthetic --set epochs=2 --set deadline.guard_s=20 --out runs/two-epochs",
    "fedbalancer run synthetic -m fedavg+1t --users 10000 --rounds 1000 --timing-only --set clients_per_round=100",
    "fedbalancer run watch --method fedbalancer --target 0.8",
    "fedbalancer compare watch --methods fedavg+1t,prox+1t,fedbalancer --seeds 5",
    "fedbalancer resume runs/compare-watch",
    "fedbalancer report runs/compare-watch",
    "fedbalancer leaderboard add runs/compare-watch --name Ann",
    "fedbalancer run watch --track tensorboard",
    "fedbalancer bench --tasks watch --json",
)
"""Typed in this order: each run in its own folder, the others in one, where later ones read what earlier ones wrote."""

_HOURS = "hours of training; its page has what it gave; with fewer rounds: "
_DATA = "needs data that a checkout does not have; on the embedded task: "
_NODES = "starts real nodes; typed by "

NOT_TYPED = {
    "fedbalancer privacy audit": "five minutes: tests/experiments/test_privacy_audit.py",
    "fedbalancer privacy audit --mechanism histogram --method fedbalancer --plays 400": "tests/cli/test_privacy.py",
    "fedbalancer run my_task.toml --device cuda --workers 4 --gpus 0.25": (
        "the reader's own file and a GPU; on the CPU: tests/test_examples.py"
    ),
    "fedbalancer fleet show fleet.csv --out fleet.png": "the reader's fleet: tests/cli/test_fleet.py",
    "fedbalancer compare watch --devices fleet.csv": "the reader's fleet: tests/cli/test_fleet.py",
    "fedbalancer compare --add runs/compare-watch --seeds 10..12 --methods canter": _HOURS + "tests/cli/test_cli.py",
    "fedbalancer merge runs/array/seed-0 runs/array/seed-1 --out runs/array/merged": (
        "folders of a cluster: tests/examples/test_slurm.py"
    ),
    "fedbalancer report runs/array/merged": "a folder of a cluster: tests/examples/test_slurm.py",
    "fedbalancer compare --add runs/array/merged --methods canter": (
        "a folder of a cluster: tests/experiments/test_merging.py"
    ),
    "fedbalancer compare": "the demo, which is as long as make demo; smaller: tests/cli/test_cli.py",
    "fedbalancer bench attacks --out docs/results/robustness": _HOURS + "tests/paper/test_robustness.py",
    "fedbalancer bench attacks --attack quiet-flip --attack step-replay --attackers 20 --seeds 2 --rounds 50": (
        _HOURS + "tests/paper/test_robustness.py"
    ),
    "fedbalancer testbed --clients 21 --scale small --method fedavg+1t,fedbalancer,canter --rounds 50 --speed 40"
    " --set eval_every=2 --seed 0 --out FOLDER": _HOURS + "tests/paper/testbed/test_bed.py",
    "fedbalancer benchmark run --cells har,femnist --methods oort,canter --trials 6 --tuning-seeds 2 --seeds 3": (
        _HOURS + "tests/cli/test_benchmark.py"
    ),
    "fedbalancer benchmark run --methods fedavg+1t --untuned canter+auto --trials 6 --tuning-seeds 2 --seeds 3": (
        _HOURS + "tests/experiments/benchmark/test_run.py"
    ),
    'fedbalancer benchmark run --methods fedavg+1t --untuned "canter-samples,canter[p=.8,deadline=2T]"': (
        _HOURS + "tests/experiments/benchmark/test_run.py"
    ),
    "fedbalancer benchmark show": "results of such a run: tests/cli/test_benchmark.py",
    "fedbalancer benchmark submit mine.toml": "the reader's method: tests/cli/test_benchmark.py",
    "fedbalancer benchmark verify --sample 3": "results of such a run: tests/cli/test_benchmark.py",
    "pytest -n 0 -m soak tests/flower/test_long_run.py": "an hour; make soak runs it: tests/flower/test_long_run.py",
    "docker compose -f deploy/compose/compose.yaml up --build -d": (
        "needs Docker; the file is checked by tests/test_deploy.py"
    ),
    "fedbalancer export synthetic --runtime litert -o synthetic.tflite": "needs TensorFlow: tests/export/test_fresh.py",
    "fedbalancer export har --runtime litert --scale paper -o har.tflite": (
        "needs TensorFlow: tests/export/test_export.py"
    ),
    "fedbalancer export my_package.nets:make --shape 1,28,28 -o mine.tflite": (
        "the reader's own model, and TensorFlow: tests/export/test_export.py"
    ),
    "fedbalancer export har --runtime executorch -o har.pte": "needs ExecuTorch: tests/export/test_export.py",
    "python benchmarks/litert.py har:small har:paper watch:small --clients executorch,torch --repeats 2": (
        "needs ExecuTorch: tests/export/test_export.py"
    ),
    "fedbalancer testbed --clients 3 --scale small --runtime executorch --model "
    "har.pte --method fedbalancer --rounds 4 --speed 40": (
        "needs ExecuTorch and real nodes; smaller: tests/flower/test_device_app.py"
    ),
    "python benchmarks/litert.py --repeats 2": "needs TensorFlow: tests/export/test_export.py",
    "fedbalancer run synthetic --users 100 --method fedbalancer+robust --attack metadata-liar:10 "
    "--attack quiet-flip:5": _HOURS + "tests/cli/test_cli.py",
    "fedbalancer compare watch --methods fedbalancer,fedbalancer+robust --attack utility-liar:3": (
        _HOURS + "tests/cli/test_cli.py"
    ),
    "python benchmarks/peers/one_client.py": "a minute of timings; its parts: tests/paper/bench/test_peers.py",
    "python benchmarks/auto.py": "minutes of training; start: tests/paper/bench/test_scripts.py",
    "python benchmarks/memory.py": "five minutes and gigabytes; smaller: tests/simulation/test_engine_fold.py",
    "fedbalancer run synthetic --device cuda --workers 4 --gpus 0.25": (
        "needs a GPU; shares: tests/simulation/executors/test_resources.py"
    ),
    "make demo": "sets up an environment of its own; its command, smaller: tests/cli/test_cli.py",
    "make test": "runs these tests",
    "make bench-peers": "installs two other frameworks, half an hour; its parts: tests/paper/bench/test_peers.py",
    ".venv/bin/python benchmarks/peers/run.py --epochs 1 --clients 4": (
        "as make bench-peers: tests/paper/bench/test_peers.py"
    ),
    ".venv/bin/python benchmarks/peers/run.py --workloads resnet18,bert-lora --repeats 5": (
        "a quarter of an hour and other frameworks; its parts: tests/paper/bench/test_peers.py"
    ),
    ".venv/bin/python benchmarks/peers/run.py --workloads femnist --engines pfl-processes,fast": (
        "as make bench-peers: tests/paper/bench/test_peers.py"
    ),
    "fedbalancer dashboard runs/compare-watch": "serves until Ctrl-C: tests/reporting/test_dashboard_server.py",
    "fedbalancer sweep har --space paper": _DATA + "tests/cli/test_sweep.py",
    "fedbalancer sweep watch --space w=5,20 --space clients.alpha=0.1..10:log --trials 40 --seeds 2": (
        _HOURS + "tests/cli/test_sweep.py"
    ),
    "fedbalancer sweep watch --method 'fedbalancer[p=.75]' --space deadline=.5T,1T,2T --objective accuracy": (
        _HOURS + "tests/cli/test_sweep.py"
    ),
    "fedbalancer sweep watch --space my_space.toml": "the reader's own file: tests/experiments/sweep/test_space.py",
    "fedbalancer paper table1 --tasks har": _DATA + "tests/cli/test_paper.py",
    "fedbalancer paper fig7 --tasks har --seeds 3": _DATA + "tests/cli/test_paper.py",
    "fedbalancer paper ITEM [--tasks a,b] [--scale small|paper] [--seeds N]": "a pattern: tests/cli/test_paper.py",
    "fedbalancer paper table5": _HOURS + "tests/cli/test_testbed.py",
    "fedbalancer paper table5 --scale small --rounds 50 --speed 40": _HOURS + "tests/cli/test_testbed.py",
    "fedbalancer paper table5 --rounds 10 --seed 0": _HOURS + "tests/cli/test_testbed.py",
    "fedbalancer bench": "measures all tasks for minutes: tests/cli/test_bench.py",
    "fedbalancer bench --tasks femnist,har --repeats 7 --seconds 3": _DATA + "tests/cli/test_bench.py",
    "fedbalancer data get har": "downloads: tests/cli/test_data.py",
    "fedbalancer data show har": _DATA + "tests/cli/test_data.py",
    "fedbalancer run har --method fedbalancer --scale paper": _DATA + "tests/data/tasks/test_har.py",
    "fedbalancer run har --method 'fedbalancer[forward_pass=every,summary=histogram(noise_multiplier=7.11)]' "
    "--epsilon-budget 8": _DATA + "tests/docs/test_tutorials.py",
    "fedbalancer testbed --method fedavg+1t,fedbalancer": _HOURS + "tests/paper/testbed/test_bed.py",
    "fedbalancer export har --runtime litert --scale small -o har-small.tflite": (
        "needs TensorFlow and data: tests/export/test_export.py"
    ),
    "fedbalancer testbed --clients 21 --scale small --runtime litert --model har-small.tflite "
    "--method fedavg+1t,fedbalancer,canter --rounds 50 --speed 40 --set eval_every=2": (
        "ten minutes: 21 SuperNodes; tests/paper/testbed/test_client.py"
    ),
    "fedbalancer testbed --clients 21 --method fedavg+1t,fedavg+wfa,prox+1t,fedbalancer --out runs/testbed": (
        _HOURS + "tests/paper/testbed/test_bed.py"
    ),
    "fedbalancer testbed --task watch --clients 4 --rounds 5": _NODES + "tests/paper/testbed/test_bed.py, with fewer",
    "fedbalancer testbed --clients 21 --rounds 10 --speed 20 --set eval_every=2": _HOURS
    + "tests/paper/testbed/test_bed.py",
    "fedbalancer report docs/results/table1": "writes into the checkout; of a folder like it: tests/cli/test_paper.py",
    "fedbalancer report runs/testbed": "reads what the test bed wrote: tests/cli/test_cli.py",
    "fedbalancer flower try my_device --nodes 3": _NODES + "tests/cli/test_flower.py, with two",
    "fedbalancer flower try my_app --nodes 3": _NODES + "tests/cli/test_flower.py, with two",
    "fedbalancer flower try . --nodes 3": "starts real nodes; the same app: tests/examples/test_flower_frameworks.py",
    "fedbalancer report runs/softmax": "of the same app: tests/examples/test_flower_frameworks.py",
    "fedbalancer report runs/digits": "of the same app: tests/examples/test_flower_frameworks.py",
    'flwr run . --federation-config "num-supernodes=3" --stream': (
        "Flower's simulation needs flwr[simulation]; the app in real processes: tests/cli/test_flower.py"
    ),
    "fedbalancer compare my_task.toml --methods fedavg+1t,fedavg+wfa,prox+1t,fedbalancer --seeds 5": (
        "the reader's own file: tests/docs/test_tutorials.py"
    ),
    "fedbalancer compare synthetic --users 100 --rounds 120 "
    "--methods fedavg+1t,fedavg+2t,fedavg+wfa,prox+1t,fedbalancer --seeds 8 --extend 1": _HOURS
    + "tests/cli/test_cli.py",
    "fedbalancer compare synthetic --users 100 --rounds 120 --seeds 2 --extend 1 "
    "--methods fedavg+wfa,prox+1t,fedbalancer,fedbalancer-clients,fedbalancer-samples,fedbalancer-deadline": (
        _HOURS + "tests/cli/test_cli.py"
    ),
    "fedbalancer compare watch --methods 'fedavg+1t,fedavg[deadline=.5T],fedbalancer[w=5],fedbalancer[w=5,p=.75]'": (
        _HOURS + "tests/cli/test_variants.py"
    ),
    "fedbalancer compare watch --track mlflow:http://localhost:5000 --track wandb:my-project": (
        "needs a server and an account: tests/experiments/test_tracking.py"
    ),
    "fedbalancer run watch --track my_package.sinks:Slack": (
        "the reader's own class: tests/experiments/test_tracking.py"
    ),
    "fedbalancer run watch --track prometheus:9464": "needs a free port: tests/store/test_telemetry.py",
    "fedbalancer dashboard runs/my-run": "a run on Flower: tests/flower/test_recorder.py",
    "fedbalancer run synthetic --method fedbalancer --config fedbalancer.toml": "typed by tests/test_examples.py",
    'python -c "from fedbalancer.testing import check_policy; from mypolicies.expected_share import ExpectedShare; '
    'print(check_policy(ExpectedShare()))"': "the same calls: tests/test_examples.py",
}

PATTERNS = {
    r"python benchmarks/(canter|scale)\.py .*": "hours, or a quiet machine; start: tests/paper/bench/test_scripts.py",
    r"fedbalancer flower (status|rollback|export|submit) (runs/|my_app).*": "a run: tests/flower/test_release.py",
    r"python benchmarks/availability_bound\.py.*": "minutes to hours; start: tests/paper/bench/test_scripts.py",
    r"python benchmarks/twin\.py .*": "minutes to hours; its parts: tests/experiments/test_forecast.py",
    r"fedbalancer fleet (learn|shadow) runs/my-run.*": "the reader's run: tests/cli/test_fleet.py",
    r"fedbalancer forecast --fleet mine\.parquet .*": "the reader's fleet: tests/cli/test_fleet.py",
    r"pip install .*": "changes the environment; `make` installs the same extras before the tests",
    r"(fedbalancer flower keys|flower-superlink|flower-supernode|flwr supernode|flwr run \. --stream"
    r"|python deadlines\.py|fedbalancer report runs/gestures)( .*)?": (
        "all of that page, as they stand but for ports and rounds: tests/examples/test_flower_tls.py"
    ),
}
"""Whole families, by a regular expression of the command."""

RUN = (
    "docs/explanation/clock.md",
    "docs/how-to/bring-your-data.md",
    "docs/how-to/bring-your-model.md",
    "docs/how-to/fine-tune.md",
    "docs/how-to/know-beforehand.md",
    "docs/how-to/metrics.md",
    "docs/how-to/optimizers.md",
    "docs/how-to/own-method.md",
    "docs/reference/fleets.md",
)
"""Pages whose blocks marked as Python run from top to bottom."""

PYTHON = {
    ("docs/how-to/flower-operate.md", "import fedbalancer as fb"): (
        "the same policies: tests/flower/test_conditions.py"
    ),
    ("docs/how-to/know-beforehand.md", "from fedbalancer.flower import record_timings, timing_mod"): (
        "part of an app: tests/flower/test_timings.py"
    ),
    ("docs/how-to/fine-tune.md", "from fedbalancer.flower import Strategy, trained_arrays"): (
        "part of an app: tests/flower/test_client_app.py"
    ),
    ("README.md", "import fedbalancer as fb"): "the reader's arrays stand for `...`; whole: tests/test_examples.py",
    ("README.md", "pip install -e '.[flower,torch]'"): "three files in one block; whole: tests/docs/test_tutorials.py",
    (
        "docs/how-to/flower.md",
        "from fedbalancer.flower import Strategy",
    ): "part of an app: tests/docs/test_tutorials.py",
    (
        "docs/how-to/flower.md",
        "from fedbalancer.flower import client_app",
    ): "part of an app: tests/docs/test_tutorials.py",
    ("docs/how-to/flower.md", "from fedbalancer.flower import balanced, introduce"): (
        "part of an app: tests/examples/test_flower_frameworks.py"
    ),
    (
        "docs/how-to/devices.md",
        "from fedbalancer.flower import device_app",
    ): "part of an app: tests/flower/test_device_app.py",
    (
        "docs/how-to/flower.md",
        "from fedbalancer.flower import device_app",
    ): "part of an app: tests/flower/test_device_app.py",
    ("docs/methods/README.md", 'method = fb.method("fedbalancer", deadline=MyDeadline(first=60))'): (
        "with the project's own class: tests/docs/test_tutorials.py"
    ),
    ("docs/reference/index.md", "import fedbalancer as fb"): "an import: tests/test_public.py",
    (
        "docs/reference/tasks.md",
        'task = fb.Task.from_arrays(x, y, model="mlp", partition="dirichlet", clients=50, alpha=0.3)',
    ): ("with arrays: tests/test_examples.py"),
    (
        "docs/how-to/flower-operate.md",
        "def conditions(context):",
    ): "part of an app: tests/flower/test_conditions.py",
    ("docs/how-to/track-runs.md", "def show(row):"): "with a function of its own: tests/experiments/test_notebook.py",
    ("docs/how-to/track-runs.md", "def patient(row):"): "with a rule of its own: tests/experiments/test_notebook.py",
    (
        "docs/how-to/track-runs.md",
        "from fedbalancer.experiments.tracking import Sink",
    ): "a pattern with `...`: tests/experiments/test_tracking.py",
}
"""Blocks of Python that are not run as they stand, by page and first line without its comment."""
