"""What the README and the docs show runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fahmc.cli.config import build, load_config
from fahmc.data.trial import opt_csv_path
from fahmc.engines.flare.kits import make_kits

ROOT = Path(__file__).parent.parent
PAGES = "".join(
    (ROOT / page).read_text() for page in ("README.md", "docs/fit.md", "docs/expectations.md", "docs/privacy.md")
)
NOT_RUN = re.compile(r"<!-- notest: .*? -->\n```.*?```\n", flags=re.DOTALL)
EXAMPLES = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", NOT_RUN.sub("", PAGES), flags=re.DOTALL)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


@pytest.mark.parametrize(("code", "printed"), EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_prints_what_it_says(code, printed):
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert NUMBER.sub("#", run.stdout).split() == NUMBER.sub("#", printed).split()
    # Another processor may round the last digit differently.
    for value, expected in zip(NUMBER.findall(run.stdout), NUMBER.findall(printed), strict=True):
        assert float(value) == pytest.approx(float(expected), abs=0.011)


def test_first_screen_is_short():
    code = [line for line in EXAMPLES[0][0].splitlines() if line.strip() and not line.startswith("import")]
    assert len(code) <= 15


def test_documented_configuration_is_accepted(tmp_path):
    text = (ROOT / "docs" / "command-line.md").read_text()
    configuration, federation = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "trial.csv").write_bytes(opt_csv_path().read_bytes())
    (tmp_path / "study.toml").write_text(configuration)
    job = build(load_config(tmp_path / "study.toml"))
    assert job.federation.num_clients == 4 and job.federation.num_rows == 814
    assert job.run_kwargs["num_rounds"] == 2000
    without_files = re.sub("(?m)^(file|site_column) = .*", "", configuration)
    (tmp_path / "federated.toml").write_text(without_files + federation)
    config = load_config(tmp_path / "federated.toml")
    assert config.federation is not None
    names = config.federation.model_dump(include={"study", "server", "sites", "analyst"})
    kits = make_kits(tmp_path / "kits", **names)
    job = build(config, kit=kits["analyst"].path)
    assert job.federation.outcome == "Preg.ended...37.wk"
    assert job.run_kwargs["engine"].patience == 600.0
