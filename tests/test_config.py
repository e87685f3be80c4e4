"""Settings: defaults that work, three sources, and errors that name source and field."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from muster.app import dialect_settings
from muster.config import Config
from muster.config_sources import SettingsError, load, reference
from muster.dialects.kinds.table import KINDS
from muster.dialects.settings import DialectSettings
from muster.gangs.messages.settings import Partial


def write(folder: Path, text: str) -> Path:
    path = folder / "muster.yaml"
    path.write_text(text)
    return path


def test_nothing_given_is_the_defaults() -> None:
    assert load(environment={}) == Config()


def test_flags_go_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = write(tmp_path, "log: {level: debug}\nhttp: {port: 1, host: '::1'}\ninbox: 5")
    environment = {"MUSTER__HTTP__PORT": "2", "MUSTER__INBOX": "6", "HOME": "/nowhere"}
    config = load(file, environment, {"inbox": 7, "http.host": None, "socket": "/run/m/s"})
    assert (config.log.level, config.http.port, config.http.host, config.inbox) == ("debug", 2, "::1", 7)
    assert config.socket == Path("/run/m/s")


def test_what_kubernetes_sets_for_a_service_named_muster_is_no_setting() -> None:
    environment = {"MUSTER_SERVICE_HOST": "10.0.0.1", "MUSTER_PORT": "tcp://10.0.0.1:80"}
    assert load(environment=environment) == Config()


def test_lists_and_null_work_in_the_environment() -> None:
    environment = {"MUSTER__SCHEDULER_NAMES": "[muster, kai-scheduler]", "MUSTER__HTTP__PORT": "null"}
    config = load(environment=environment)
    assert config.scheduler_names == ("muster", "kai-scheduler")
    assert config.http.port is None


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load(write(tmp_path, "# nothing\n"), {}) == Config()


@pytest.mark.parametrize("partial", Partial)
def test_what_becomes_of_a_partially_bound_gang_may_be_written_as_a_word(partial: Partial) -> None:
    """The gangs compare it by identity."""
    assert load(environment={"MUSTER__GANGS__PARTIAL": partial.value}).gangs.partial is partial


MODES = ("on", "off", "warn", "'on'", "true", "no")


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_of_a_kind_of_job_needs_no_quotes(tmp_path: Path, mode: str) -> None:
    """YAML reads a bare on or off as true or false."""
    meant = {"'on'": "on", "true": "on", "no": "off"}.get(mode, mode)
    config = load(write(tmp_path, f"infer_gangs: {{default: {mode}, PyTorchJob: warn}}"), {})
    assert config.infer_gangs == {"default": meant, "PyTorchJob": "warn"}
    assert dialect_settings(config).infers("Job") == meant


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_job_may_be_named(tmp_path: Path, kind: str) -> None:
    config = load(write(tmp_path, f"infer_gangs: {{{kind}: on}}"), {})
    assert dialect_settings(config).infers(kind) == "on"


def test_a_setting_of_an_earlier_release_keeps_no_service_from_starting(tmp_path: Path) -> None:
    assert load(write(tmp_path, "session_queue: 10"), {}) == load(None, {})


BAD_FILES = {
    "an unknown field": (
        "sockett: /x",
        "there is no setting 'sockett'; known here: kubeconfig, context, socket",
    ),
    "an unknown field in a section": (
        "http: {prt: 1}",
        "there is no setting 'http.prt'; known here: host, port",
    ),
    "an old name": (
        "gangs: {earmark_after_s: 5}",
        "gangs.earmark_after_s has a new name: gangs.backfill_after_s",
    ),
    "a text where a number belongs": ("inbox: many", "inbox: input should be a valid integer"),
    "a number out of range": (
        "http: {port: 70000}",
        "http.port: input should be less than or equal to 65535",
    ),
    "no time at all": ("gangs: {plan_s: 0}", "gangs.plan_s: input should be greater than 0"),
    "an infinite time": ("watch: {timeout_s: .inf}", "watch.timeout_s: input should be a finite number"),
    "a word that is none of the choices": ("log: {level: loud}", "log.level: input should be 'debug'"),
    "a value where a section belongs": ("http: 80", "http: input should be a valid dictionary"),
    "no scheduler names": ("scheduler_names: []", "scheduler_names: tuple should have at least 1 item"),
    "a list for the whole file": ("[1, 2]", "a mapping of settings is expected, not list"),
    "a kind of job that is none": (
        "infer_gangs: {PytorchJob: 'on'}",
        "infer_gangs.PytorchJob: known are default, PyTorchJob, TFJob,",
    ),
    "a mode that is none": (
        "infer_gangs: {Job: always}",
        "infer_gangs.Job: input should be 'off', 'warn' or 'on'",
    ),
    "no YAML": ("a: [", "no valid YAML"),
    "a key that is no text": ("1: 2", "there is no setting '1'"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file_is_refused_with_its_name_and_the_field(tmp_path: Path, case: str) -> None:
    text, message = BAD_FILES[case]
    file = write(tmp_path, text)
    with pytest.raises(SettingsError) as caught:
        load(file, {})
    assert str(caught.value).startswith(f"{file}: {message}")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml: can't be read"):
        load(tmp_path / "none.yaml", {})


def test_a_bad_variable_and_a_bad_flag_are_named_as_such() -> None:
    with pytest.raises(SettingsError) as caught:
        load(None, {"MUSTER__HTTP__PRT": "1"}, {"log.level": "loud"})
    assert sorted(str(caught.value).splitlines()) == [
        "--log-level: input should be 'debug', 'info', 'warning' or 'error'",
        "environment MUSTER__HTTP__PRT: there is no setting 'http.prt'; known here: host, port",
    ]


def test_the_reference_is_a_file_that_changes_nothing(tmp_path: Path) -> None:
    assert load(write(tmp_path, reference()), {}) == Config()


def test_every_field_is_documented() -> None:
    schema = Config.model_json_schema()
    sections = [schema, *(part for part in schema["$defs"].values() if "properties" in part)]
    fields = [(name, field) for section in sections for name, field in section["properties"].items()]
    undocumented = [name for name, field in fields if "description" not in field]
    assert undocumented == [name for name, field in schema["properties"].items() if "$ref" in field]
    assert all(line for line in yaml.safe_load(reference()))


def test_names_are_those_of_the_dialects() -> None:
    dialects = DialectSettings()
    assert frozenset(Config().scheduler_names) == dialects.scheduler_names
    assert Config().gpu_resources == dialects.gpu_resources
