"""What each command does, once its words are read."""

from __future__ import annotations

import getpass
import json
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from switchyard.site import (
    CANCELLED,
    FORBIDDEN,
    NOT_YET,
    OK,
    REFUSED,
    TIMED_OUT,
    UNREACHABLE,
    USAGE,
    Site,
    Trouble,
    keep,
    open_site,
)

ENDED = ("succeeded", "failed", "cancelled", "timed_out")
UNENDED = ("queued", "starting", "running", "pausing", "paused", "preempting", "node_lost")
_SHORT = {
    "queued": "PD",
    "starting": "CF",
    "running": "R",
    "pausing": "SI",
    "paused": "S",
    "preempting": "PR",
    "node_lost": "NF",
    "succeeded": "CD",
    "failed": "F",
    "cancelled": "CA",
    "timed_out": "TO",
}
_LOOK_S, _SLOWEST_LOOK_S = 1.0, 10.0


def write_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def say(text: str) -> None:
    """To the person, not into what the command writes."""
    print(text, file=sys.stderr)


# Submit ----------------------------------------------------------------------------------------------------------


def submit(args: Namespace) -> int:
    site = open_site()
    text = _text_of(args)
    if _is_json(text):
        return _submit_json(site, args, text)
    body: dict[str, Any] = {"text": text, "submit": not args.dry_run, "preview": bool(args.dry_run)}
    if args.team:
        body["team"] = args.team
    if args.options:
        body["options"] = args.options
    if args.format:
        body["format"] = args.format
    try:
        answer = site.post("jobs/import", body)
    except Trouble as trouble:
        if trouble.code == REFUSED and not args.json and not args.dry_run:
            say("Nothing was submitted.")
        raise
    if not args.quiet and not args.json:
        _say_notes(answer["notes"], with_understood=args.dry_run)
    if args.dry_run:
        return _show_import(args, answer)
    return _submitted(site, args, answer["submitted"], answer)


def _text_of(args: Namespace) -> str:
    if args.wrap is not None:
        if args.file:
            raise Trouble("--wrap stands in place of a file", USAGE)
        return f"#!/bin/sh\n{args.wrap}\n"
    if not args.file and sys.stdin.isatty():
        raise Trouble("Name a file: a batch script, manifests or a job as JSON (- for standard input)", USAGE)
    try:
        if args.file in (None, "-"):
            return sys.stdin.buffer.read().decode("utf-8")
        return Path(args.file).read_bytes().decode("utf-8")
    except OSError as error:
        raise Trouble(f"{args.file}: {error.strerror}", USAGE) from None
    except UnicodeDecodeError as error:
        raise Trouble(f"{args.file or 'standard input'}: not UTF-8 at byte {error.start}", USAGE) from None


def _is_json(text: str) -> bool:
    return text.lstrip()[:1] == "{" and '"apiVersion"' not in text


def _submit_json(site: Site, args: Namespace, text: str) -> int:
    try:
        job = json.loads(text)
    except ValueError as error:
        raise Trouble(f"The JSON cannot be read: {error}", USAGE) from None
    if args.options:
        raise Trouble(f"{args.options[0]} goes with a batch script; say it in the JSON", USAGE)
    if args.team:
        job["team"] = args.team
    if args.dry_run:
        preview = site.post("jobs/preview", job)
        if args.json:
            write_json(preview)
        else:
            _show_preview(preview)
        return OK
    answer = site.post("jobs", job)
    ids = [answer["id"]]
    array = answer.get("array")
    if array:
        ids = [one["id"] for one in _all(site, 10_000, array=array["id"], order="oldest")] or ids
    return _submitted(site, args, ids, answer)


def _submitted(site: Site, args: Namespace, ids: list[int], answer: Any) -> int:
    if args.json and not args.wait:
        write_json(answer)
    elif args.parsable:
        print("\n".join(str(one) for one in ids))
    elif not args.json:
        for one in ids[:10]:
            print(f"Submitted job {one}")
        if len(ids) > 10:
            print(f"and {len(ids) - 10} more, up to {ids[-1]}")
    if not args.wait:
        return OK
    sys.stdout.flush()
    return _wait_for(site, ids, None, as_json=args.json)


def _say_notes(notes: list[dict[str, Any]], *, with_understood: bool) -> None:
    for note in notes:
        if note["severity"] != "understood" or with_understood:
            why = f" ({note['why']})" if note["why"] else ""
            say(f"{note['severity']}: {note['where']}: {note['option']}: {note['what']}{why}")


def _show_import(args: Namespace, answer: dict[str, Any]) -> int:
    if args.json:
        write_json(answer)
    else:
        for job in answer["jobs"]:
            write_json(job)
        for preview in answer["previews"]:
            if preview:
                _show_preview(preview)
        for error in answer["errors"]:
            say(f"error: {error['path']}: {error['message']}")
        say("Nothing was submitted.")
    return OK if answer["can_submit"] else REFUSED


def _show_preview(preview: dict[str, Any]) -> None:
    where = f" on {preview['cluster']}" if preview.get("cluster") else ""
    if preview["would_start"]:
        say(f"It would start now{where}.")
    else:
        reason = preview.get("reason") or {}
        say(
            f"It would wait; expected start {_when(preview['expected_start'])}. {reason.get('sentence', '')}".rstrip()
        )


# Look ------------------------------------------------------------------------------------------------------------


def queue(args: Namespace) -> int:
    site = open_site()
    user = site.get("me")["username"] if args.me else args.user
    state = _states(args.state)
    jobs = _all(site, args.limit, state=state, team=args.team, user=user)
    if args.json:
        write_json(jobs)
        return OK
    rows = [["JOBID", "NAME", "TEAM", "USER", "ST", "TIME", "DEVICES", "START", "REASON"]]
    for job in jobs:
        reason = f"({job['reason']['code']})" if job["state"] == "queued" and job.get("reason") else ""
        start = job["expected_start"] if job["state"] == "queued" else job["started_at"]
        array = job.get("array")
        rows.append(
            [
                str(job["id"]),
                job["name"] + (f"[{array['index']}]" if array else ""),
                job["team"],
                job["user"],
                _SHORT.get(job["state"], job["state"]),
                _span(job["run_s"]),
                f"{job['n_devices']:g}",
                _when(start),
                reason,
            ]
        )
    _table(rows)
    if len(jobs) == args.limit:
        say(f"The first {args.limit} of more; see --limit.")
    return OK


def _states(said: str | None) -> str | None:
    if said is None:
        return ",".join(UNENDED)
    if said.lower() == "all":
        return None
    by_short = {short: state for state, short in _SHORT.items()}
    return ",".join(by_short.get(word.strip().upper(), word.strip().lower()) for word in said.split(","))


def _all(site: Site, limit: int, **query: Any) -> list[dict[str, Any]]:
    """Jobs of a list, page by page."""
    jobs: list[dict[str, Any]] = []
    cursor = None
    while len(jobs) < limit:
        page = site.get("jobs", limit=min(limit - len(jobs), 1000), cursor=cursor, **query)
        jobs += page["items"]
        cursor = page["next"]
        if cursor is None:
            break
    return jobs


def why(args: Namespace) -> int:
    site = open_site()
    reasons = site.get(f"jobs/{args.id}/reasons")
    if args.json:
        write_json(reasons)
        return OK
    reason = reasons["reason"]
    if reasons["state"] != "queued":
        print(f"Job {args.id} does not wait: it is {reasons['state']}.")
    elif reason is None:
        print(f"Job {args.id} waits; no pass of the planner has looked at it yet.")
    else:
        print(f"Job {args.id} waits: {reason['sentence']}")
        print(f"Reason          {reason['code']}")
        if reason["blocked_by"]:
            print(f"Blocked by      {', '.join(reason['blocked_by'])}")
        if reasons["rank"] is not None:
            print(f"Rank            {reasons['rank']}")
        print(f"Expected start  {_when(reasons['expected_start'])}")
    end = reasons.get("expected_end")
    if end:
        print(f"Expected end    {_when(end.get('at'))}")
    return OK


def logs(args: Namespace) -> int:
    site = open_site()
    offset, attempt, n_idle = 0, args.attempt, 0
    while True:
        chunk = site.get(
            f"jobs/{args.id}/logs",
            rank=args.rank,
            stream="stderr" if args.stderr else "stdout",
            offset=offset,
            limit=1024 * 1024,
            attempt=attempt,
        )
        if args.follow and args.attempt is None and attempt is None and chunk["attempt"] is not None:
            # From now on of this attempt, so that no piece of another gets in.
            attempt = chunk["attempt"]
        if args.json:
            print(json.dumps(chunk, ensure_ascii=False))
        else:
            sys.stdout.write(chunk["text"])
        sys.stdout.flush()
        has_more = chunk["next_offset"] > offset
        offset = chunk["next_offset"]
        if has_more:
            n_idle = 0
            continue
        n_idle += 1
        if not args.follow:
            return OK
        # A lost node may never say that nothing follows, so the job itself is asked now and then.
        if chunk["is_complete"] or chunk["attempt"] is None or n_idle % 10 == 0:
            if site.get(f"jobs/{args.id}")["state"] in ENDED:
                return OK
            if chunk["is_complete"] and args.attempt is None:
                last = site.get(f"jobs/{args.id}/logs", rank=args.rank, limit=1)["attempt"]
                if last is not None and last != attempt:
                    say(f"Job {args.id} is tried again: attempt {last}.")
                    attempt, offset = last, 0
                    continue
            elif chunk["is_complete"]:
                return OK
        time.sleep(_LOOK_S)


# Act -------------------------------------------------------------------------------------------------------------


def cancel(args: Namespace) -> int:
    site = open_site()
    code, answers = OK, []
    for one in args.ids:
        try:
            answer = site.post(f"jobs/{one}/stop", {"reason": args.reason} if args.reason else {})
        except Trouble as trouble:
            if trouble.code == UNREACHABLE:
                raise
            say(f"Job {one}: {trouble}")
            code = code or trouble.code
            continue
        answers.append(answer)
        if not args.json:
            print(
                f"Job {one} is {answer['state']}"
                if answer["state"] in ENDED
                else f"Job {one} was told to end"
            )
    if args.json:
        write_json(answers)
    return code


def wait(args: Namespace) -> int:
    return _wait_for(open_site(), args.ids, args.timeout, as_json=args.json)


def _wait_for(site: Site, ids: Sequence[int], timeout_s: float | None, *, as_json: bool) -> int:
    """Wait until all have ended; the exit code of the first of them that did not succeed."""
    until = None if timeout_s is None else time.monotonic() + timeout_s
    ended: dict[int, dict[str, Any]] = {}
    pause_s = _LOOK_S / 2
    while True:
        for one in ids:
            if one not in ended:
                job = site.get(f"jobs/{one}")
                if job["state"] in ENDED:
                    ended[one] = job
                    if not as_json:
                        say(_ended(job))
        if len(ended) == len(set(ids)):
            break
        if until is not None and time.monotonic() >= until:
            left = [str(one) for one in ids if one not in ended]
            raise Trouble(f"Not ended yet: {', '.join(left[:20])}", NOT_YET)
        left_s = pause_s if until is None else max(0.0, min(pause_s, until - time.monotonic()))
        time.sleep(left_s)
        pause_s = min(pause_s * 1.5, _SLOWEST_LOOK_S)
    if as_json:
        write_json([ended[one] for one in ids])
    return next((code for code in (_exit_code(ended[one]) for one in ids) if code), OK)


def _exit_code(job: dict[str, Any]) -> int:
    state, code = job["state"], int(job["exit_code"] or 0)
    if state == "succeeded":
        return OK
    if state == "timed_out":
        return TIMED_OUT
    if state == "cancelled":
        return CANCELLED
    if not code:
        return 1
    # A job that died of a signal ends with 128 and the signal, as in a shell.
    return min(128 - code, 255) if code < 0 else min(code, 255)


def _ended(job: dict[str, Any]) -> str:
    code = f", exit code {job['exit_code']}" if job["exit_code"] is not None else ""
    return f"Job {job['id']} {job['state']}{code}"


def login(args: Namespace) -> int:
    url = args.url or input("Address of the site: ").strip()
    if "://" not in url:
        url = f"https://{url}"
    token = (
        sys.stdin.readline().strip()
        if args.token_stdin
        else getpass.getpass("Token (from your page, /me/): ").strip()
    )
    site = Site(url, token)
    try:
        me = site.get("me")
    except Trouble as trouble:
        if trouble.code == FORBIDDEN:
            raise Trouble(f"The token is not valid at {site.url}; nothing was kept", FORBIDDEN) from None
        raise
    path = keep(site.url, token)
    if url.startswith("http://") and not any(
        url.startswith(f"http://{host}") for host in ("127.0.0.1", "localhost", "[::1]")
    ):
        say("The address is plain http: everybody on the way can read the token.")
    if args.json:
        write_json({"url": site.url, "username": me["username"], "config": str(path)})
    else:
        print(f"Signed in at {site.url} as {me['username']}; kept in {path}")
    return OK


# Words -----------------------------------------------------------------------------------------------------------


def _table(rows: list[list[str]]) -> None:
    widths = [min(max(len(row[column]) for row in rows), 40) for column in range(len(rows[0]))]
    for row in rows:
        cells = [cell if len(cell) <= width else cell[: width - 1] + "+" for cell, width in zip(row, widths)]
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())


def _when(text: str | None) -> str:
    """An instant in this machine's zone."""
    if not text:
        return "-"
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone().strftime("%m-%dT%H:%M")


def _span(seconds: float) -> str:
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"
