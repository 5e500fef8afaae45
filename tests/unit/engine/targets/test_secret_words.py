"""What is taken for a secret, by its name."""

from __future__ import annotations

from gdbext.engine.targets.system import linux
from gdbext.engine.targets.system.linux import HIDDEN

SECRETS = """HF_TOKEN DB_PASSWD PGPASSWORD GIT_AUTH BASIC_AUTHORIZATION SSH_PRIVATE WANDB_API_KEY APIKEY MY_KEY DB_PWD
    AWS_SECRET_ACCESS_KEY SMTP_PASS GOOGLE_CREDENTIALS --db-password --api-key -token SESSION_COOKIE"""
OTHERS = """OMP_NUM_THREADS PWD OLDPWD PYTHONPATH TORCH_COMPILE_BYPASS NCCL_DEBUG KEYBOARD MASTER_ADDR
    key_prefix num_tokens"""


def test_names_of_secrets() -> None:
    assert [name for name in f"{SECRETS} {OTHERS}".split() if linux.is_secret(name)] == SECRETS.split()


def test_reports_hide_them() -> None:
    given = {"TORCH_AUTH": "x", "TORCH_PASSWD": "y", "TORCH_LOG_URL": "https://me:pw@host/x", "OMP_NUM_THREADS": "4"}
    shown = {"OMP_NUM_THREADS": "4", "TORCH_LOG_URL": f"https://{HIDDEN}@host/x"}
    assert linux.shown_variables(given) == {**shown, "TORCH_AUTH": HIDDEN, "TORCH_PASSWD": HIDDEN}
    assert linux.public_variables(given) == shown


def test_a_command_without_its_arguments() -> None:
    command = "/usr/bin/g++\0-c\0/tmp/x/main.cpp\0-DKEY=abc\0--password\0hunter2\0https://a:b@c/x.py\0"
    assert (
        linux.hide_arguments(command) == f"/usr/bin/g++\0-c\0/tmp/x/main.cpp\0{HIDDEN}\0{HIDDEN}\0{HIDDEN}\0{HIDDEN}\0"
    )
    assert (linux.hide_arguments(""), linux.hide_arguments("sleep\0")) == ("", "sleep\0")


def test_a_command_line_that_is_shown_has_no_secrets() -> None:
    words = b"python\0x.py\0--token=abc\0--db-password\0hunter2\0--key\0/a/file\0A=redis://me:pw@host\0--lr=1\0\xff\0"
    shown = "python x.py --token=*** --db-password ******* --key /a/file A=redis://*****@host --lr=1 \ufffd"
    assert linux.command_text(words) == shown
    assert linux.command_text(b"") == ""
    assert linux.command_text(b"-p\0--password=\0") == "-p --password="


def test_secrets_among_the_words_of_a_process() -> None:
    words = b"""python|--token=abcdefgh|--db-password|hunter2|--secret|--verbose|x.py|DB_PASSWD=correct|MY_KEY=1|
        SSH_AUTH_SOCK=/run/agent|PWD=some folder|A=postgres://me:mypassword@host""".split(b"|")
    words = [word.strip() for word in words]
    assert linux.secrets_among(words) == [b"me:mypassword", b"abcdefgh", b"correct", b"hunter2"]
    assert linux.blank_secrets(b"x hunter2 y", linux.secrets_among(words)) == b"x ******* y"
    assert linux.without_user("no address") == "no address"
