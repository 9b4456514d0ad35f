"""The words of the command line."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence

from switchyard import commands
from switchyard.site import INTERRUPTED, OK, USAGE, Trouble

_EXIT_CODES = """exit codes:
  0 done   2 wrong usage   65 refused, or no such job   69 the site cannot be reached
  75 wait --timeout is over   77 not signed in, or not allowed   130 Ctrl-C; jobs run on
  of wait and submit --wait: that of the first job that did not succeed (124 time limit, 125 cancelled)

SWITCHYARD_URL and SWITCHYARD_TOKEN win over what login has kept."""

# Options of sbatch that take no value of their own, so that the next word is not theirs.
_SBATCH_FLAGS = {
    "--contiguous", "--exclusive", "--hold", "--no-requeue", "--overcommit", "--oversubscribe", "--requeue",
    "--spread-job", "--use-min-nodes", "--reboot", "--verbose", "--no-kill", "--propagate", "--get-user-env", "--nice",
    "--ignore-pbs", "-H", "-O", "-s", "-v", "-k",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in words
    try:
        args = _parser().parse_args(words) if words[:1] != ["submit"] else _submit_words(words[1:])
        code: int = args.run(args)
        sys.stdout.flush()
    except Trouble as trouble:
        if as_json and trouble.problem is not None:
            print(json.dumps(trouble.problem, ensure_ascii=False), file=sys.stderr)
        else:
            print(f"switchyard: {trouble}", file=sys.stderr)
        return trouble.code
    except KeyboardInterrupt:
        print("", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read has gone (switchyard queue | head): nothing more is to be written, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="switchyard",
        description="Submit jobs to Switchyard and see what becomes of them.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(run=None)
    jobs = parser.add_subparsers(metavar="COMMAND", required=True)
    jobs.add_parser("submit", help="submit a batch script, manifests, or a job as JSON (submit --help)")

    queue = _command(jobs, "queue", commands.queue, "jobs that wait and run")
    queue.add_argument("--me", action="store_true", help="only mine")
    queue.add_argument("-u", "--user")
    queue.add_argument("-A", "--team")
    queue.add_argument(
        "-t", "--state", help="names as in the API or squeue's short ones, parted by commas; or all"
    )
    queue.add_argument("--limit", type=_count, default=1000, help="most jobs (1000)")

    why = _command(jobs, "why", commands.why, "why a job waits, and when it is expected to start")
    why.add_argument("id", type=_job_id)

    logs = _command(jobs, "logs", commands.logs, "what a job wrote")
    logs.add_argument("id", type=_job_id)
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the job has ended")
    logs.add_argument("--rank", type=_rank, default=0, help="which replica (0)")
    logs.add_argument("--stderr", action="store_true", help="standard error in place of standard output")
    logs.add_argument("--attempt", type=_count, help="which attempt, from 1 (the last)")

    cancel = _command(jobs, "cancel", commands.cancel, "ask jobs to end")
    cancel.add_argument("ids", type=_job_id, nargs="+", metavar="id")
    cancel.add_argument("--reason", default="", help="kept with the job")

    wait = _command(jobs, "wait", commands.wait, "wait until jobs have ended; ends with their exit code")
    wait.add_argument("ids", type=_job_id, nargs="+", metavar="id")
    wait.add_argument("--timeout", type=_seconds, metavar="SECONDS")

    login = _command(jobs, "login", commands.login, "keep the site's address and your token")
    login.add_argument("--url")
    login.add_argument("--token-stdin", action="store_true", help="read the token from standard input")
    return parser


def _command(
    among: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: object,
    help: str,
) -> argparse.ArgumentParser:
    parser = among.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="write what the site answered")
    return parser


def _submit_words(words: list[str]) -> argparse.Namespace:
    """Our own options by their parser; what is before the file and not ours is sbatch's, read by the site."""
    parser = argparse.ArgumentParser(
        prog="switchyard submit",
        usage="switchyard submit [--team T] [--wait] [--dry-run] [options of sbatch] FILE",
        description="Submit a batch script, manifests or a job as JSON. Options that are not listed are read as sbatch "
        "reads them, and win over those in the script.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=commands.submit)
    parser.add_argument("file", nargs="?", help="- or nothing: standard input")
    parser.add_argument(
        "--team", help="whose job it is; else the account, queue or namespace, if it is a team"
    )
    parser.add_argument(
        "-W", "--wait", action="store_true", help="until it has ended; ends with its exit code"
    )
    parser.add_argument(
        "--dry-run", "--test-only", action="store_true", help="show what it means; submit nothing"
    )
    parser.add_argument("--format", choices=("sbatch", "kubernetes"), help="told from the text otherwise")
    parser.add_argument("--wrap", metavar="COMMAND", help="a command in place of a script")
    parser.add_argument("--parsable", action="store_true", help="write the ids alone")
    parser.add_argument("-Q", "--quiet", action="store_true", help="say nothing of what was ignored")
    parser.add_argument("--json", action="store_true", help="write what the site answered")
    ours = {name for action in parser._actions for name in action.option_strings}
    takes = {"--team", "--format", "--wrap"}
    own: list[str] = []
    theirs: list[str] = []
    files: list[str] = []
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        name = word.split("=", 1)[0]
        is_apart = "=" not in word and place < len(words)
        if word == "-" or not word.startswith("-"):
            files.append(word)
        elif name in ours:
            own.append(word)
            if name in takes and is_apart:
                own.append(words[place])
                place += 1
        else:
            theirs.append(word)
            is_short_with_value = not word.startswith("--") and len(word) > 2
            if is_apart and word not in _SBATCH_FLAGS and not is_short_with_value:
                theirs.append(words[place])
                place += 1
    if len(files) > 1:
        print(f"switchyard submit: {files[1]}: a script's own arguments are not passed on", file=sys.stderr)
        raise SystemExit(USAGE)
    args = parser.parse_args([*own, *files])
    args.options = theirs
    return args


def _job_id(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 19 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no id of a job")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 8 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def _rank(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


if __name__ == "__main__":
    sys.exit(main())
