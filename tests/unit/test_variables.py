"""What of the user's environment reaches the ranks, and what of it is recorded."""

from __future__ import annotations

import sys

import pytest

from escala.cache import store
from escala.cache.code import Code
from escala.core import variables


@pytest.mark.parametrize(
    "name",
    [
        "TF_ENABLE_ONEDNN_OPTS",
        "XLA_FLAGS",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_VERBOSE",
        "KMP_AFFINITY",
        "MKL_CBWR",
        "OPENBLAS_CORETYPE",
        "NPY_DISABLE_CPU_FEATURES",
        "NVIDIA_TF32_OVERRIDE",
        "NCCL_ALGO",
        "TORCH_DISTRIBUTED_DEBUG",
        "PYTORCH_CUDA_ALLOC_CONF",
        "UCX_TLS",
        "FI_PROVIDER",
        "MALLOC_ARENA_MAX",
        "GLIBC_TUNABLES",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "PYTHONHASHSEED",
        "PYTHONPATH",
    ],
)
def test_what_can_change_a_result_reaches_the_ranks_and_is_recorded(name):
    given = {name: "/set", "HOME": "/nonexistent"}
    assert variables.passed(given) == given
    assert variables.describe(given) == {"variables": {name: "/set"}, "files": {}}


@pytest.mark.parametrize(
    "name",
    [
        "HOME",
        "PATH",
        "LC_ALL",
        "TMPDIR",
        "CUDA_VISIBLE_DEVICES",
        "TF_CPP_MIN_LOG_LEVEL",
        "TORCH_HOME",
    ],
)
def test_what_changes_nothing_reaches_the_ranks_and_is_not_recorded(name):
    assert variables.passed({name: "x"}) == {name: "x"}
    assert variables.deciding({name: "x"}) == {}


def test_no_other_variable_reaches_them_unless_the_user_names_it_and_no_secret_is_recorded():
    given = {
        "MY_DATA": "/data",
        "MY_TOKEN": "s",
        "OTHER": "x",
        "TF_TOKEN": "s",
        "TORCHELASTIC_RUN_ID": "x",
        "CUDA_API_KEY": "s",
    }
    assert variables.passed(given) == {}
    named = given | {"ESCALA_PASS": "MY_DATA,MY_TOKEN"}
    assert set(variables.passed(named)) == {"MY_DATA", "MY_TOKEN", "ESCALA_PASS"}
    assert variables.deciding(named) == {"MY_DATA": "/data"}


def test_the_projects_own_folder_is_no_part_of_the_search_path_that_is_recorded(tmp_path):
    project = str(variables._PROJECT)
    assert variables.deciding({"PYTHONPATH": project}) == {}
    found = variables.deciding({"PYTHONPATH": f"{project}:{tmp_path}:"})
    assert found == {"PYTHONPATH": str(tmp_path)}


def test_files_that_libraries_read_by_themselves_are_recorded(tmp_path, monkeypatch):
    home = tmp_path / "home"
    for name, text in {
        "home/.openmpi/mca-params.conf": "# ours\n\nbtl_tcp_if_exclude = eth1 # slow\n",
        "home/.keras/keras.json": '{"floatx": "float16", "epsilon": 1e-07}',
        "env/etc/openmpi-mca-params.conf": "# no line that counts\n",
        "env/etc/pmix-mca-params.conf": "gds = hash\n" * 1000,
        "home/libmine.so": "library",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    # As the places of packages under Windows' short names.
    (tmp_path / "env").rename(tmp_path / "env~1")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "env~1"))
    found = variables.describe({"HOME": str(home), "LD_PRELOAD": f"{home}/libmine.so"})["files"]
    assert found.pop("~/.openmpi/mca-params.conf") == "btl_tcp_if_exclude = eth1"
    assert found.pop("~/.keras/keras.json") == '{"floatx": "float16"}'
    assert found.pop("$PREFIX/etc/pmix-mca-params.conf").startswith("sha256 ")
    assert found.pop(f"{home}/libmine.so").startswith("sha256 ")
    assert not found


def test_the_store_serves_nothing_that_was_made_with_another_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("ESCALA_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("HOME", str(tmp_path))
    output = tmp_path / "output"

    def step() -> str:
        return store.get_or_compute(
            "step",
            code=Code({}),
            inputs={},
            parameters={},
            outputs={"output": output},
            make=lambda: output.write_text("made") and None,
        )

    assert [step(), step()] == ["made", "served"]
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    assert [step(), step()] == ["made", "served"]
    (tmp_path / ".openmpi").mkdir()
    (tmp_path / ".openmpi" / "mca-params.conf").write_text("coll_tuned_use_dynamic_rules = 1\n")
    assert [step(), step()] == ["made", "served"]
    monkeypatch.delenv("TF_ENABLE_ONEDNN_OPTS")
    (tmp_path / ".openmpi" / "mca-params.conf").unlink()
    monkeypatch.setenv("SOME_OTHER", "x")
    assert step() == "served"
