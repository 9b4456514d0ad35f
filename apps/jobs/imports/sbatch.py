"""A batch script of Slurm, read as sbatch reads it, and the job it means here.

Pure. sbatch reads options from lines that begin with `#SBATCH` up to the first line that is no comment, expands no
shell variable in them, and starts the script once, on the first node. Here it is started in every replica; the
notes say so. (Source of the grammar: sbatch(1).)
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time, timedelta
from math import ceil
from typing import Any, Final

from apps.jobs.imports.facts import (
    MAX_NOTES,
    MAX_TEXT,
    Imported,
    Note,
    Severity,
    Site,
    Unreadable,
    listed,
    matching_types,
    plain,
)

_MAX_OPTIONS: Final = 500
_SWITCH_WAIT_S: Final = 300  # Slurm's own max_switch_wait
_MAX_GRACE_S: Final = 3600

_SHORT: Final = {
    "A": "account",
    "a": "array",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "h": "help",
    "I": "immediate",
    "i": "input",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "V": "version",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
    "B": "extra-node-info",
}

# Options that take no value; those of the second may have one, after = only.
_FLAGS: Final = frozenset(
    {
        "contiguous", "help", "hold", "ignore-pbs", "no-requeue", "overcommit", "oversubscribe", "parsable", "quiet",
        "reboot", "requeue", "spread-job", "test-only", "usage", "use-min-nodes", "verbose", "version", "wait",
        "stepmgr", "immediate",
    }
)  # fmt: skip
_MAY_TAKE: Final = frozenset(
    {"exclusive", "get-user-env", "nice", "no-kill", "propagate", "kill-on-invalid-dep-flag"}
)

_SITE_OWN: Final = "The planner decides this by the site's own rules"
_OF_SLURM: Final = "It steers Slurm's own steps and has no meaning for the planner"
_NO_PLACE: Final = "Parts of a node are not chosen one by one; ask for cpus, memory and devices"
_LOGS: Final = (
    "Output is captured for each replica: see the job's page, GET /jobs/{id}/logs or `switchyard logs`"
)
_AT_TERMINAL: Final = "It tells sbatch how to behave at the terminal"

# What has no counterpart and does not change what runs: option -> why.
_IGNORED: Final = {
    "mail-type": "No mail is sent; follow the job by `switchyard wait` or on its page",
    "mail-user": "No mail is sent; follow the job by `switchyard wait` or on its page",
    "output": _LOGS,
    "error": _LOGS,
    "open-mode": _LOGS,
    "partition": "There are no partitions: say what the job needs, and the planner finds the place",
    "qos": "There is no QOS: the team's quota and the priority stand for it",
    "comment": "It is kept nowhere",
    "admin-comment": "It is kept nowhere",
    "extra": "It is kept nowhere",
    "wckey": "Use is accounted by team and user",
    "mcs-label": "Use is accounted by team and user",
    "nice": "Set `priority` instead; it goes up to the team's ceiling",
    "time-min": "The limit is not shortened to fit a gap; declare a shorter `time_limit`",
    "exclude": "Nodes that are unhealthy are avoided without being named",
    "prefer": "Only what a job must have is taken over",
    "no-kill": "A gang that loses a node starts again as a whole",
    "kill-on-invalid-dep": "A job whose dependency can never be met is cancelled",
    "ntasks-per-core": _NO_PLACE,
    "ntasks-per-socket": _NO_PLACE,
    "sockets-per-node": _NO_PLACE,
    "cores-per-socket": _NO_PLACE,
    "threads-per-core": _NO_PLACE,
    "extra-node-info": _NO_PLACE,
    "hint": _NO_PLACE,
    "core-spec": _NO_PLACE,
    "thread-spec": _NO_PLACE,
    "mincpus": _NO_PLACE,
    "gres-flags": _NO_PLACE,
    "distribution": _OF_SLURM,
    "cpu-bind": _OF_SLURM,
    "mem-bind": _OF_SLURM,
    "gpu-bind": _OF_SLURM,
    "accel-bind": _OF_SLURM,
    "overcommit": _OF_SLURM,
    "profile": _OF_SLURM,
    "acctg-freq": _OF_SLURM,
    "propagate": _OF_SLURM,
    "network": _OF_SLURM,
    "power": _OF_SLURM,
    "delay-boot": _OF_SLURM,
    "bell": _OF_SLURM,
    "mpi": _OF_SLURM,
    "stepmgr": _OF_SLURM,
    "resv-ports": _OF_SLURM,
    "tres-bind": _OF_SLURM,
    "gpu-freq": "Power caps are set by power control",
    "cpu-freq": "Power caps are set by power control",
    "oversubscribe": "To share one device, ask for a fraction of it in `devices`",
    "contiguous": _SITE_OWN,
    "spread-job": _SITE_OWN,
    "use-min-nodes": _SITE_OWN,
    "tmp": "Local disk is not planned",
    "get-user-env": "The environment of the person who submits is not taken along; say it in `env`",
    "parsable": _AT_TERMINAL,
    "quiet": _AT_TERMINAL,
    "verbose": _AT_TERMINAL,
    "wait": _AT_TERMINAL,
    "ignore-pbs": _AT_TERMINAL,
    "immediate": _AT_TERMINAL,
    "help": _AT_TERMINAL,
    "usage": _AT_TERMINAL,
    "version": _AT_TERMINAL,
    "bb": "There is no burst buffer; name `datasets` to have data sent ahead",
    "bbf": "There is no burst buffer; name `datasets` to have data sent ahead",
}

# What would change which job it is: option -> why.
_REFUSED: Final = {
    "nodelist": "The planner chooses the nodes; take the line out, or name a `reservation` or `cluster`",
    "nodefile": "The planner chooses the nodes; take the line out, or name a `reservation` or `cluster`",
    "licenses": "Licences are not counted here, so nothing would keep too many jobs from running at once",
    "input": "A job has no standard input; read the file in the script",
    "uid": "A job runs for the person who submits it",
    "gid": "A job runs for the person who submits it",
    "export-file": "Files are not read on import; write the values in `env`",
    "reboot": "Nodes are not rebooted for a job",
    "test-only": "To look without submitting, use the preview",
    "wrap": "sbatch takes it on the command line alone",
}

_READ: Final = frozenset(
    {
        "account", "array", "begin", "chdir", "clusters", "constraint", "container", "cpus-per-gpu",
        "cpus-per-task", "deadline", "dependency", "exclusive", "export", "gpus", "gpus-per-node",
        "gpus-per-socket", "gpus-per-task", "gres", "hold", "job-name", "mem", "mem-per-cpu", "mem-per-gpu",
        "no-requeue", "nodes", "ntasks", "ntasks-per-gpu", "ntasks-per-node", "priority", "requeue",
        "reservation", "signal", "switches", "time", "tres-per-node", "tres-per-task",
    }
)  # fmt: skip
_SPELLINGS: Final = {
    "workdir": "chdir",
    "cluster": "clusters",
    "tasks-per-node": "ntasks-per-node",
    "share": "oversubscribe",
    "oversub": "oversubscribe",
}
_ALL: Final = sorted(_READ | _IGNORED.keys() | _REFUSED.keys() | _FLAGS | _SPELLINGS.keys())
_KNOWN: Final = frozenset(_ALL)


@dataclass(frozen=True, slots=True)
class _Option:
    name: str
    value: str
    line: int  # 0: from the command line
    component: int = 0
    said: str = ""

    @property
    def where(self) -> str:
        return f"line {self.line}" if self.line else "command line"


class _No(ValueError):
    """This value cannot be meant here; the text says why."""


def read(text: str, site: Site, *, options: Sequence[str] = (), team: str = "") -> Imported:
    """The job that a batch script means.

    Args:
        options: As on sbatch's command line; they win over the script's.
        team: Whose job it is; else the account, if it is the name of a team.

    Raises:
        Unreadable: if it is no script at all.
    """
    if len(text) > MAX_TEXT:
        raise Unreadable(f"has more than {MAX_TEXT} characters", code="too_long")
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if not text.startswith("#!"):
        raise Unreadable(
            "is no batch script: the first line must begin with #! (such as #!/bin/bash)", line=1
        )
    return _Reader(site, text, team).read(options)


@dataclass
class _Reader:
    site: Site
    text: str
    team: str
    notes: list[Note] = field(default_factory=list)

    def read(self, argv: Sequence[str]) -> Imported:
        found = [*self._in_script(), *self._of_argv(list(argv))]
        if len(found) > _MAX_OPTIONS:
            raise Unreadable(f"has more than {_MAX_OPTIONS} options", code="too_long")
        n_components = 1 + max((one.component for one in found), default=0)
        # The last of a name wins, as with sbatch; what comes before it is not looked at.
        components: list[dict[str, _Option]] = [{} for _ in range(n_components)]
        for option in found:
            here = components[option.component]
            before = here.get(option.name)
            if before is not None and before.value != option.value:
                self._note("ignored", before, "is said again later", "The last one counts")
            here[option.name] = option
        job: dict[str, Any] = {}
        whole = components[0]
        for option in (one for here in components for one in here.values()):
            self._dispose(option)
        self._whole(whole, job)
        if n_components == 1:
            job.update(_Needs(self, whole).read())
        else:
            self._groups(components, job)
        self._script(whole, job)
        self.notes.sort(key=lambda note: note.line or 0)
        return Imported("sbatch", [job], self.notes[:MAX_NOTES])

    def _note(self, severity: Severity, option: _Option, what: str, why: str = "", field: str = "") -> None:
        self.notes.append(
            Note(
                severity,
                option.where,
                option.said or f"--{option.name}",
                what,
                why,
                option.line or None,
                field,
            )
        )

    def took(self, option: _Option, what: str, field: str = "", why: str = "") -> None:
        self._note("understood", option, what, why, field)

    # Options ------------------------------------------------------------------------------------------------------

    def _in_script(self) -> Iterator[_Option]:
        component, is_over = 0, False
        for number, line in enumerate(self.text.split("\n"), start=1):
            if not line.startswith("#"):
                is_over = is_over or bool(line.strip())
                continue
            if re.match(r"#(PBS|BSUB|\$|COBALT|OAR|LSF)\s+-", line):
                kind = line.split()[0]
                self._at(number, kind, "ignored", "is not read", "It is an option of another batch system")
                continue
            if not re.match(r"#SBATCH(\s|$)", line):
                continue
            if is_over:
                said = line.removeprefix("#SBATCH").strip()[:40]
                why = "sbatch itself reads no option after the first command of the script"
                self._at(number, said or "#SBATCH", "ignored", "is not read", why)
                continue
            try:
                words = _split(line.removeprefix("#SBATCH"))
            except _No as no:
                self._at(number, "#SBATCH", "refused", "cannot be read", str(no))
                continue
            if words and words[0] in ("hetjob", "packjob"):
                component += 1
                continue
            yield from self._options(words, number, component)

    def _at(self, line: int, option: str, severity: Severity, what: str, why: str) -> None:
        self.notes.append(Note(severity, f"line {line}", option, what, why, line))

    def _of_argv(self, argv: list[str]) -> Iterator[_Option]:
        yield from self._options(argv, 0, 0)

    def _options(self, words: list[str], line: int, component: int) -> Iterator[_Option]:
        place = 0
        while place < len(words):
            word = words[place]
            place += 1
            if word == "--":
                break
            if word.startswith("--"):
                typed, sign, value = word[2:].partition("=")
                name = _long_name(typed)
                if name is None:
                    self._unknown(line, f"--{typed[:40]}", typed)
                    # Its value, if it stands apart, is not an option of its own.
                    if not sign and place < len(words) and not words[place].startswith("-"):
                        place += 1
                    continue
                if name in _FLAGS:
                    yield _Option(name, value, line, component, f"--{name}")
                    continue
                if not sign and name not in _MAY_TAKE:
                    if place == len(words):
                        self._valueless(line, f"--{name}")
                        continue
                    value, place = words[place], place + 1
                yield _Option(name, value, line, component, f"--{name}")
            elif word.startswith("-") and len(word) > 1:
                letter, value = word[1], word[2:]
                name = _SHORT.get(letter)
                if name is None:
                    self._unknown(line, f"-{letter}", "")
                    if not value and place < len(words) and not words[place].startswith("-"):
                        place += 1
                    continue
                said = f"-{letter}"
                if name in _FLAGS:
                    yield _Option(name, "", line, component, said)
                    if value:
                        words.insert(place, f"-{value}")  # -Hv is -H -v
                    continue
                if not value and name not in _MAY_TAKE:
                    if place == len(words):
                        self._valueless(line, said)
                        continue
                    value, place = words[place], place + 1
                yield _Option(name, value.removeprefix("="), line, component, said)
            else:
                where = f"line {line}" if line else "command line"
                why = "Options begin with a dash; sbatch does not read this either"
                self.notes.append(Note("refused", where, word[:40], "is no option", why, line or None))

    def _unknown(self, line: int, said: str, typed: str) -> None:
        near = [name for name in _ALL if typed and name.startswith(typed)]
        why = (
            f"It may be any of {listed('--' + one for one in near)}" if near else "sbatch has no such option"
        )
        where = f"line {line}" if line else "command line"
        self.notes.append(Note("refused", where, said, "is not known", why, line or None))

    def _valueless(self, line: int, said: str) -> None:
        where = f"line {line}" if line else "command line"
        self.notes.append(Note("refused", where, said, "needs a value", "", line or None))

    def _dispose(self, option: _Option) -> None:
        """Say of an option that has no counterpart what that means."""
        if option.name in _IGNORED:
            self._note("ignored", option, "is ignored", _IGNORED[option.name])
        elif option.name in _REFUSED:
            self._note("refused", option, "cannot be meant here", _REFUSED[option.name])
        elif "$" in option.value or "`" in option.value:
            why = "Shell variables are not evaluated in #SBATCH lines, by sbatch neither"
            self._note("ignored", option, f"is taken as it stands: {option.value[:60]}", why)

    def try_(self, option: _Option | None, take: Callable[[_Option], None]) -> None:
        """Read one option; what cannot be meant becomes a note."""
        if option is None:
            return
        try:
            take(option)
        except _No as no:
            self._note("refused", option, f"{option.value[:60]!r} cannot be meant", str(no))

    # The job as a whole -------------------------------------------------------------------------------------------

    def _whole(self, options: dict[str, _Option], job: dict[str, Any]) -> None:
        job["name"] = "sbatch"
        if self.team:
            job["team"] = self.team
        takers: dict[str, Callable[[_Option, dict[str, Any]], None]] = {
            "job-name": self._job_name, "account": self._account, "time": self._time, "begin": self._begin,
            "deadline": self._deadline, "array": self._array, "dependency": self._dependency,
            "requeue": self._requeue, "no-requeue": self._no_requeue, "signal": self._signal, "hold": self._hold,
            "reservation": self._reservation, "clusters": self._clusters, "chdir": self._chdir, "export": self._export,
            "priority": self._priority, "container": self._container,
        }  # fmt: skip
        for name, take in takers.items():
            self.try_(options.get(name), lambda option, take=take: take(option, job))  # type: ignore[misc]
        if "requeue" in options and "no-requeue" in options:
            last = max(options["requeue"], options["no-requeue"], key=lambda one: one.line or 10**9)
            job["preemptible"] = last.name == "requeue"

    def _job_name(self, option: _Option, job: dict[str, Any]) -> None:
        name = option.value.strip()
        if not name:
            raise _No("A job needs a name")
        job["name"] = name
        self.took(option, f"name {name}", "name")

    def _account(self, option: _Option, job: dict[str, Any]) -> None:
        if self.team:
            self._note("ignored", option, "is ignored", f"The team was given: {self.team}")
        elif option.value in self.site.teams:
            job["team"] = option.value
            self.took(option, f"team {option.value}", "team")
        else:
            why = f"{option.value[:60]} is no team that you submit for; those are {listed(self.site.teams)}"
            self._note("ignored", option, "is ignored", why)

    def _time(self, option: _Option, job: dict[str, Any]) -> None:
        limit_s = _duration_s(option.value)
        if limit_s is None:
            why = "Without a limit the job fits into no gap"
            self._note("ignored", option, "no time limit", why)
            return
        job["time_limit"] = limit_s
        self.took(option, f"time limit {limit_s} s", "time_limit")

    def _begin(self, option: _Option, job: dict[str, Any]) -> None:
        then = _instant(option.value, self.site)
        job["not_before"] = then.isoformat()
        self.took(option, f"not before {then.isoformat()}", "not_before")

    def _deadline(self, option: _Option, job: dict[str, Any]) -> None:
        then = _instant(option.value, self.site)
        job["deadline"] = then.isoformat()
        self.took(option, f"deadline {then.isoformat()}", "deadline")

    def _array(self, option: _Option, job: dict[str, Any]) -> None:
        indices, most = _array_indices(option.value)
        job["array"] = {"size": len(indices)} | ({"max_running": most} if most else {})
        said = f"{len(indices)} jobs" + (f", at most {most} at once" if most else "")
        if indices == list(range(len(indices))):
            self.took(option, said, "array", "SWITCHYARD_ARRAY_INDEX counts them from 0")
        else:
            why = f"SWITCHYARD_ARRAY_INDEX counts them from 0; it stands for the index {_as_ranges(indices)}"
            self.took(option, said, "array", why)

    def _dependency(self, option: _Option, job: dict[str, Any]) -> None:
        after: list[int] = []
        if "?" in option.value:
            raise _No("A job waits for all that it names; any of several is not told apart")
        for part in option.value.split(","):
            kind, _, ids = part.strip().partition(":")
            if kind != "afterok":
                told = {
                    "singleton": "Jobs of one name are not kept from running together",
                    "afterany": "A job waits for others to end well; one that failed would leave it waiting",
                    "after": "A job waits for others to end, not to start",
                    "afternotok": "A job waits for others to end well, not for their failure",
                    "aftercorr": "Jobs of two arrays are not paired",
                    "afterburstbuffer": "There is no burst buffer",
                }
                raise _No(
                    f"{told.get(kind, f'{kind[:30]} is no kind of dependency')}; only afterok can be meant"
                )
            for one in ids.split(":"):
                if not re.fullmatch(r"[1-9]\d{0,17}", one, re.ASCII):
                    raise _No(f"{one[:30] or 'an empty word'} is no id of a job")
                after.append(int(one))
        job["after"] = list(dict.fromkeys(after))
        why = "The ids are taken as ids of jobs here, not in Slurm"
        self.took(option, f"after {listed(str(one) for one in after)}", "after", why)

    def _requeue(self, option: _Option, job: dict[str, Any]) -> None:
        job["preemptible"] = True
        why = "A job that is preempted or loses its node is queued again by itself"
        self.took(option, "preemptible", "preemptible", why)

    def _no_requeue(self, option: _Option, job: dict[str, Any]) -> None:
        job["preemptible"] = False
        why = "It is never preempted; if its node is lost it is queued again all the same"
        self.took(option, "not preemptible", "preemptible", why)

    def _signal(self, option: _Option, job: dict[str, Any]) -> None:
        match = re.fullmatch(
            r"(?:([BR]{1,2}):)?(?:SIG)?([A-Za-z0-9]+)(?:@(\d{1,6}))?", option.value, re.ASCII
        )
        if match is None:
            raise _No("It must be [B:]NAME[@SECONDS]")
        name, grace_s = match[2].upper(), int(match[3] or 60)
        if grace_s > _MAX_GRACE_S:
            raise _No(f"At most {_MAX_GRACE_S} s lie between the warning and the end")
        job["grace_s"] = grace_s
        if name in ("TERM", "15"):
            why = "SIGTERM comes when the job has to go, at its limit too; SIGKILL comes so much later"
            self.took(option, f"{grace_s} s of grace", "grace_s", why)
        else:
            why = f"The signal is SIGTERM, not {name}: trap that, or the job ends at once"
            self._note("ignored", option, f"{grace_s} s of grace, but no {name}", why, "grace_s")

    def _hold(self, option: _Option, job: dict[str, Any]) -> None:
        job["held"] = True
        self.took(option, "held until it is released", "held")

    def _reservation(self, option: _Option, job: dict[str, Any]) -> None:
        if "," in option.value:
            raise _No("A job runs in one reservation at most")
        job["reservation"] = option.value
        self.took(option, f"in reservation {option.value}", "reservation")

    def _clusters(self, option: _Option, job: dict[str, Any]) -> None:
        if option.value not in self.site.clusters:
            raise _No(f"It is no cluster here, nor one alone; those are {listed(self.site.clusters)}")
        job["cluster"] = option.value
        self.took(option, f"only on {option.value}", "cluster")

    def _chdir(self, option: _Option, job: dict[str, Any]) -> None:
        if "%" in option.value:
            raise _No("Patterns such as %j are not filled in")
        job["workdir"] = option.value
        self.took(option, f"starts in {option.value}", "workdir")

    def _export(self, option: _Option, job: dict[str, Any]) -> None:
        env, inherited = {}, []
        for part in _commas(option.value):
            name, sign, value = part.partition("=")
            if sign:
                env[name.strip()] = value
            elif name.strip():
                inherited.append(name.strip())
        if env:
            job["env"] = env
            self.took(option, f"environment {listed(env)}", "env")
        passed_on = [name for name in inherited if name not in ("NONE", "NIL")]
        if passed_on:
            why = "The environment of the person who submits is not taken along; say values in `env`"
            self._note("ignored", option, f"{listed(passed_on)} is not passed on", why)
        elif inherited:
            self.took(option, "nothing is passed on", "", "It never is")

    def _priority(self, option: _Option, job: dict[str, Any]) -> None:
        if not re.fullmatch(r"\d{1,7}", option.value, re.ASCII):
            raise _No("It must be a whole number up to 1000000")
        job["priority"] = int(option.value)
        self.took(option, f"priority {int(option.value)}", "priority")

    def _container(self, option: _Option, job: dict[str, Any]) -> None:
        raise _No("OCI bundles are not unpacked; on a Kubernetes cluster name an `image`")

    # Groups and script --------------------------------------------------------------------------------------------

    def _groups(self, components: list[dict[str, _Option]], job: dict[str, Any]) -> None:
        groups = []
        for index, options in enumerate(components):
            shared = {"ntasks", "nodes"}
            needs = _Needs(self, options).read()
            for name in sorted(_OF_JOB & options.keys()) if index else ():
                if name not in shared and options[name].value != getattr(
                    components[0].get(name), "value", None
                ):
                    why = "It counts for the whole job, so it is read from the first component alone"
                    self._note("ignored", options[name], "is ignored", why)
            groups.append({"name": f"component-{index}", **needs})
        job["groups"] = groups
        self.notes.append(
            Note(
                "understood",
                "script",
                "hetjob",
                f"{len(groups)} groups that start together",
                "The script runs in every replica of each; SWITCHYARD_GROUP tells which",
                field="groups",
            )
        )

    def _script(self, options: dict[str, _Option], job: dict[str, Any]) -> None:
        job["script"] = self.text
        body = [
            (n, line) for n, line in enumerate(self.text.split("\n"), 1) if not line.lstrip().startswith("#")
        ]
        used: dict[str, int] = {}
        for number, line in body:
            for name in re.findall(r"\b(?:SLURMD?|SBATCH)_[A-Z0-9_]+\b", line):
                used.setdefault(name, number)
        head = self._stand_ins(used, options)
        if head:
            shebang, _, rest = self.text.partition("\n")
            job["script"] = "\n".join((shebang, *head, rest))
        self._slurm_commands(body)
        n = _n_replicas(job)
        if n > 1:
            self._launchers(body, n)
            why = (
                "sbatch starts it on the first node, and srun starts the tasks; here each replica runs the script, and "
                "SWITCHYARD_RANK tells them apart"
            )
            self.notes.append(
                Note("ignored", "script", "script", f"runs in each of {n} replicas", why, field="script")
            )

    def _stand_ins(self, used: dict[str, int], options: dict[str, _Option]) -> list[str]:
        """Lines that give Slurm's variables their values, as far as they have a counterpart."""
        if not used:
            return []
        if not re.match(r"#!\s*\S*(/env\s+(-S\s+)?)?\b(ba|da|k|z)?sh\b", self.text.split("\n", 1)[0]):
            for name, number in used.items():
                here = _STAND_INS.get(name, ("", ""))[1]
                why = f"{here} says it" if here else "Nothing here stands for it"
                self._at(number, name, "ignored", "is not set", why)
            return []
        lines = []
        for name, number in sorted(used.items()):
            value, here = _STAND_INS.get(name, ("", ""))
            if name in _ARRAY_VARIABLES:
                value, here = self._array_stand_in(name, options), "SWITCHYARD_ARRAY_INDEX"
            if not value:
                self._at(
                    number,
                    name,
                    "ignored",
                    "is not set",
                    "Nothing here stands for it; on a Slurm cluster it is set",
                )
                continue
            # On a Slurm cluster Slurm's own value stays.
            lines.append(f'export {name}="${{{name}:-{value}}}"')
            why = f"From {here}, by a line that is put at the head of the script"
            self.notes.append(Note("understood", f"line {number}", name, "is set", why, number, "script"))
        return lines

    def _array_stand_in(self, name: str, options: dict[str, _Option]) -> str:
        if "array" not in options:
            return ""
        try:
            indices, _ = _array_indices(options["array"].value)
        except _No:
            return ""
        match name:
            case "SLURM_ARRAY_TASK_COUNT":
                return str(len(indices))
            case "SLURM_ARRAY_TASK_MIN":
                return str(min(indices))
            case "SLURM_ARRAY_TASK_MAX":
                return str(max(indices))
        step = indices[1] - indices[0] if len(indices) > 1 else 1
        if indices == list(range(indices[0], indices[0] + step * len(indices), step)):
            if (step, indices[0]) == (1, 0):
                return "$SWITCHYARD_ARRAY_INDEX"
            return f"$((SWITCHYARD_ARRAY_INDEX * {step} + {indices[0]}))"
        if len(indices) > 1000:
            return ""
        words = " ".join(str(one) for one in indices)
        return f"$(echo {words} | cut -d ' ' -f $((SWITCHYARD_ARRAY_INDEX + 1)))"

    def _slurm_commands(self, body: list[tuple[int, str]]) -> None:
        said: dict[str, int] = {}
        for number, line in body:
            for name in re.findall(
                r"(?:^|[\s;&|(`])(srun|sbatch|sbcast|scontrol|squeue|sacct|scancel|salloc)(?=\s|$)", line
            ):
                said.setdefault(name, number)
        for name, number in sorted(said.items(), key=lambda item: item[1]):
            why = "It is a command of Slurm, and there only where the job runs on a Slurm cluster"
            if name == "srun":
                why += "; elsewhere leave it out, since every replica runs the script"
            self._at(number, name, "ignored", "is not replaced", why)

    def _launchers(self, body: list[tuple[int, str]], n: int) -> None:
        for number, line in body:
            match = re.search(r"(?:^|[\s;&|(`])(mpirun|mpiexec)(?=\s|$)", line)
            if match:
                why = (
                    f"Each of the {n} replicas runs the script, so each would start all tasks; let the script start "
                    "its own replica's part alone"
                )
                self._at(number, match[1], "refused", "cannot be meant here", why)


_ARRAY_VARIABLES: Final = frozenset(
    {"SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_MAX"}
)
# Slurm's variable -> how a shell makes it here, and of what.
_STAND_INS: Final = {
    "SLURM_JOB_ID": ("$SWITCHYARD_JOB_ID", "SWITCHYARD_JOB_ID"),
    "SLURM_JOBID": ("$SWITCHYARD_JOB_ID", "SWITCHYARD_JOB_ID"),
    "SLURM_JOB_NAME": ("$SWITCHYARD_JOB_NAME", "SWITCHYARD_JOB_NAME"),
    "SLURM_JOB_ACCOUNT": ("$SWITCHYARD_TEAM", "SWITCHYARD_TEAM"),
    "SLURM_NNODES": ("$SWITCHYARD_N_REPLICAS", "SWITCHYARD_N_REPLICAS"),
    "SLURM_JOB_NUM_NODES": ("$SWITCHYARD_N_REPLICAS", "SWITCHYARD_N_REPLICAS"),
    "SLURM_NODEID": ("$SWITCHYARD_RANK", "SWITCHYARD_RANK"),
    "SLURM_NODELIST": ("$SWITCHYARD_NODES", "SWITCHYARD_NODES"),
    "SLURM_JOB_NODELIST": ("$SWITCHYARD_NODES", "SWITCHYARD_NODES"),
    "SLURMD_NODENAME": ("$SWITCHYARD_NODE", "SWITCHYARD_NODE"),
    "SLURM_SUBMIT_DIR": ("$PWD", "the working folder"),
    "SLURM_JOB_GPUS": ("$SWITCHYARD_DEVICE_INDICES", "SWITCHYARD_DEVICE_INDICES"),
}
_OF_JOB: Final = frozenset(
    {"time", "array", "dependency", "begin", "deadline", "account", "job-name", "export", "signal"}
)


def _n_replicas(job: dict[str, Any]) -> int:
    return sum(int(group.get("replicas", 1)) for group in job.get("groups", [job]))


# What it needs ---------------------------------------------------------------------------------------------------


@dataclass
class _Needs:
    """Replicas and what each needs, from the many ways to say it; a replica stands for one node's share of the job.

    Where nodes are not said, each task is a replica if its devices or the memory are said by task, since then Slurm may
    put the tasks on any nodes; where they are said by node, one node it is.
    """

    reader: _Reader
    options: dict[str, _Option]
    counts: dict[str, int] = field(default_factory=dict)
    types: list[str] = field(default_factory=list)
    per_node: float | None = None
    per_task: float | None = None
    total: int | None = None

    def read(self) -> dict[str, Any]:
        needs: dict[str, Any] = {}
        for name in ("ntasks", "ntasks-per-node", "cpus-per-task", "cpus-per-gpu", "ntasks-per-gpu"):
            self.reader.try_(self.options.get(name), self._count)
        self.reader.try_(self.options.get("nodes"), self._nodes)
        for name in (
            "gpus",
            "gpus-per-node",
            "gpus-per-task",
            "gpus-per-socket",
            "gres",
            "tres-per-node",
            "tres-per-task",
        ):
            self.reader.try_(self.options.get(name), self._gpus)
        self.reader.try_(self.options.get("constraint"), self._constraint)
        self.reader.try_(self.options.get("switches"), lambda option: self._switches(option, needs))
        self.reader.try_(self.options.get("exclusive"), self._exclusive)
        replicas, tasks, devices = self._layout()
        needs["replicas"], needs["devices"] = replicas, plain(devices)
        cpus = self._cpus(tasks, devices)
        if cpus:
            needs["cpus"] = cpus
        for name in ("mem", "mem-per-cpu", "mem-per-gpu"):
            self.reader.try_(
                self.options.get(name), lambda option: self._memory(option, needs, cpus or tasks, devices)
            )
        if self.types:
            needs["accelerators"] = self.types
        return needs

    def _count(self, option: _Option) -> None:
        if not re.fullmatch(r"[1-9]\d{0,5}", option.value, re.ASCII):
            raise _No("It must be a whole number from 1")
        self.counts[option.name] = int(option.value)
        # What the counts came to is said once they all are known.

    def _nodes(self, option: _Option) -> None:
        match = re.fullmatch(r"(\d{1,6})([kKmM]?)(?:-(\d{1,6})([kKmM]?))?", option.value, re.ASCII)
        if match is None:
            raise _No("It must be a number of nodes, or the least and the most, such as 2-4")
        scale = {"": 1, "k": 1024, "m": 1024 * 1024}
        least = int(match[1]) * scale[match[2].lower()]
        if not 1 <= least <= 1_000_000:
            raise _No("There must be 1 to 1000000 nodes")
        self.counts["nodes"] = least
        most = int(match[3]) * scale[match[4].lower()] if match[3] else least
        if most < least:
            raise _No("The most must not be under the least")
        if most > least:
            why = (
                "An elastic job is resized while it runs, which this script need not bear; the least is taken"
            )
            self.reader._note("ignored", option, f"{least} nodes, never {most}", why, "replicas")

    def _gpus(self, option: _Option) -> None:
        by_type: dict[str, float] = {}
        n = 0.0
        for part in (one.strip() for one in re.sub(r"\([^)]*\)", "", option.value).split(",")):
            kind, count = self._gpu_part(option, part)
            if kind is None:
                continue
            n += count
            if kind:
                by_type[kind] = by_type.get(kind, 0) + count
            elif count == 0:
                continue
        if len(by_type) > 1:
            raise _No(f"One job never mixes device types: {listed(by_type)}")
        for kind in by_type:
            self._type(option, kind)
        match option.name:
            case "gpus":
                self.total = int(n)
            case "gpus-per-task" | "tres-per-task":
                self.per_task = (
                    (self.per_task or 0) + n if n or option.name == "gpus-per-task" else self.per_task
                )
            case "gpus-per-socket":
                raise _No("Sockets are not told apart; say --gpus-per-node")
            case _:
                if n or self.per_node is None:
                    self.per_node = max(self.per_node or 0, n)

    def _gpu_part(self, option: _Option, part: str) -> tuple[str | None, float]:
        """Type ("" for any, None for no device) and number of one entry of a list."""
        if not part or part.lower() == "none":
            return None, 0
        words = re.split("[:=/]", part)
        if option.name in ("gres", "tres-per-node", "tres-per-task"):
            if words[0] == "gres" and len(words) > 1:
                words = words[1:]
            kind, words = words[0], words[1:]
            if kind == "cpu" and option.name == "tres-per-task" and words and words[-1].isdigit():
                self.counts.setdefault("cpus-per-task", int(words[-1]))
                return None, 0
            if kind == "mps":
                if not words or not re.fullmatch(r"[1-9]\d?|100", words[-1], re.ASCII):
                    raise _No("A share by MPS must be 1 to 100 hundredths of one device")
                return "", int(words[-1]) / 100
            if kind == "shard":
                raise _No("How many shards make a device is the cluster's secret; say a share in `devices`")
            if kind != "gpu":
                why = "Only devices, cpus and memory are planned"
                self.reader._note("ignored", option, f"{part[:40]} is ignored", why)
                return None, 0
        count = 1.0
        if words and re.fullmatch(r"\d{1,6}", words[-1], re.ASCII):
            count = int(words.pop())
        if len(words) > 1:
            raise _No(f"{part[:40]} is no number of devices")
        return (words[0] if words else ""), count

    def _type(self, option: _Option, kind: str) -> None:
        found = matching_types(kind, self.reader.site.accelerators)
        if not found:
            raise _No(
                f"No accelerator type here is called {kind[:40]}; there are {listed(self.reader.site.accelerators)}"
            )
        self.types = [name for name in found if not self.types or name in self.types] or found
        self.reader.took(option, f"device type {listed(found)}", "accelerators")

    def _constraint(self, option: _Option) -> None:
        text = option.value.strip().strip("[]").strip("()")
        for part in re.split(r"[&,]", text):
            names = [one.strip(" ()[]") for one in part.split("|")]
            found = [match for name in names for match in matching_types(name, self.reader.site.accelerators)]
            memory = [
                re.fullmatch(r"(?:gpu|vram|mem|gpu_?mem)?[-_]?(\d{1,4})gi?b?", name.lower()) for name in names
            ]
            if found and all(matching_types(name, self.reader.site.accelerators) for name in names):
                found = list(dict.fromkeys(found))
                self.types = [name for name in found if not self.types or name in self.types]
                if not self.types:
                    raise _No("No one device type has all of these features")
                self.reader.took(option, f"device type {listed(self.types)}", "accelerators")
            else:
                hint = "; for device memory say `min_memory_gib`" if all(memory) else ""
                raise _No(
                    f"Features of nodes are not kept, and no accelerator type here is called {part[:40]}{hint}; there "
                    f"are {listed(self.reader.site.accelerators)}"
                )

    def _switches(self, option: _Option, needs: dict[str, Any]) -> None:
        n, _, wait = option.value.partition("@")
        if n != "1":
            raise _No("Nodes lie under one leaf or anywhere; a number of leaves cannot be asked for")
        wait_s = _SWITCH_WAIT_S if not wait else _duration_s(wait)
        needs["topology"] = {"preferred": "leaf"} | ({} if wait_s is None else {"max_wait": wait_s})
        self.reader.took(option, f"one leaf preferred, waits {wait_s} s for it", "topology")

    def _exclusive(self, option: _Option) -> None:
        if option.value in ("user", "mcs", "topo"):
            raise _No("Nodes are shared by whoever has room; who else is there cannot be chosen")
        why = "A node's other devices and cpus are given to others; ask for all that one node has to be alone on it"
        self.reader._note("ignored", option, "the nodes are not kept from others", why)

    def _layout(self) -> tuple[int, int, float]:
        """Replicas, tasks of each, devices of each."""
        counts = self.counts
        tasks, per_node, nodes = counts.get("ntasks"), counts.get("ntasks-per-node"), counts.get("nodes")
        if self.per_task is None and counts.get("ntasks-per-gpu") and self.total and not tasks:
            tasks = counts["ntasks-per-gpu"] * self.total
        if nodes is None:
            nodes = self._nodes_by_need(tasks, per_node)
        if tasks is None:
            tasks = nodes * (per_node or 1)
        each = ceil(tasks / nodes)
        devices: float
        if self.per_node is not None:
            devices = self.per_node
        elif self.per_task is not None:
            devices = self.per_task * each
        elif self.total is not None:
            devices = self.total / nodes
            if self.total % nodes:
                self._refuse("gpus", f"{self.total} devices over {nodes} nodes are not the same on each")
                devices = ceil(devices)
        else:
            devices = 0
        if tasks % nodes and (self.per_task is not None or counts.get("cpus-per-task", 1) > 1):
            name = "ntasks" if "ntasks" in self.options else "nodes"
            why = f"Replicas are equal, so each has room for {each}"
            self._say(name, "ignored", f"{tasks} tasks over {nodes} nodes", why)
        if self.total is not None and self.per_node is not None and self.total != self.per_node * nodes:
            said = f"{self.total} devices in all and {self.per_node:g} on each of {nodes} nodes differ"
            self._refuse("gpus", said)
        for name in (
            "nodes",
            "ntasks",
            "ntasks-per-node",
            "gpus",
            "gpus-per-node",
            "gpus-per-task",
            "gres",
            "tres-per-node",
            "tres-per-task",
            "ntasks-per-gpu",
        ):
            self._say(
                name,
                "understood",
                f"{nodes} replica{'s' * (nodes != 1)} of {devices:g} devices",
                "",
                "replicas",
            )
        return nodes, each, devices

    def _nodes_by_need(self, tasks: int | None, per_node: int | None) -> int:
        if tasks and per_node:
            return ceil(tasks / per_node)
        if self.total and self.per_node:
            return max(1, self.total // max(int(self.per_node), 1))
        if tasks and tasks > 1 and self.per_node is None:
            # Devices by task, or none: Slurm may put each task anywhere.
            return tasks if not self.total or self.total % tasks == 0 else 1
        return 1

    def _cpus(self, tasks: int, devices: float) -> int:
        counts = self.counts
        if "cpus-per-gpu" in counts:
            cpus = ceil(counts["cpus-per-gpu"] * devices)
            self._say("cpus-per-gpu", "understood", f"{cpus} cpus per replica", "", "cpus")
            return cpus
        if "cpus-per-task" in counts:
            cpus = counts["cpus-per-task"] * tasks
            self._say("cpus-per-task", "understood", f"{cpus} cpus per replica", "", "cpus")
            return cpus
        return tasks if tasks > 1 or devices == 0 else 0

    def _memory(self, option: _Option, needs: dict[str, Any], cpus: int, devices: float) -> None:
        match = re.fullmatch(r"(\d{1,9})(?:([kKmMgGtT])[bB]?)?", option.value, re.ASCII)
        if match is None:
            raise _No("It must be a number with K, M, G or T, such as 64G")
        gib = int(match[1]) * {"k": 1 / 1024**2, "m": 1 / 1024, "g": 1, "t": 1024}[(match[2] or "m").lower()]
        if not gib:
            why = (
                "It means all memory of the node, which is not known before the place is; say how much it is"
            )
            self.reader._note("ignored", option, "no memory is asked for", why)
            return
        gib *= {"mem": 1, "mem-per-cpu": cpus, "mem-per-gpu": devices}[option.name]
        needs["memory_gib"] = plain(round(gib, 6))
        self.reader.took(option, f"{needs['memory_gib']:g} GiB per replica", "memory_gib")

    def _refuse(self, name: str, why: str) -> None:
        self._say(name, "refused", "cannot be meant", why)

    def _say(self, name: str, severity: Severity, what: str, why: str = "", field: str = "") -> None:
        option = self.options.get(name)
        if option is not None and not (
            severity == "understood"
            and any(
                n.severity == "refused" and n.where == option.where and n.option == option.said
                for n in self.reader.notes
            )
        ):
            self.reader._note(severity, option, what, why, field)


# Words and numbers -----------------------------------------------------------------------------------------------


def _split(text: str) -> list[str]:
    """Words as sbatch parts them: quotes and backslashes as in a shell, a # at a word's begin ends the line."""
    words: list[str] = []
    word, quote, place = "", "", 0
    is_open = False
    while place < len(text):
        char = text[place]
        place += 1
        if char == "\\" and quote != "'" and place < len(text):
            word, place, is_open = word + text[place], place + 1, True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "'\"":
            quote, is_open = char, True
        elif char.isspace():
            if is_open:
                words.append(word)
            word, is_open = "", False
        elif char == "#" and not is_open:
            break
        else:
            word, is_open = word + char, True
    if quote:
        raise _No(f"A quotation mark {quote} is not closed")
    if is_open:
        words.append(word)
    return words


def _long_name(typed: str) -> str | None:
    """The option that is meant, by its name or a beginning that only it has."""
    if typed in _SPELLINGS:
        return _SPELLINGS[typed]
    if typed in _KNOWN or typed in _MAY_TAKE:
        return typed
    near = {_SPELLINGS.get(name, name) for name in _ALL if len(typed) > 1 and name.startswith(typed)}
    return near.pop() if len(near) == 1 else None


def _commas(text: str) -> list[str]:
    """Parts between commas; a quoted part may hold one."""
    return [part.strip("'\"") for part in re.findall(r"(?:'[^']*'|\"[^\"]*\"|[^,])+", text)]


def _duration_s(text: str) -> int | None:
    """Seconds of `minutes[:seconds]`, `hours:minutes:seconds` or `days-hours[:minutes[:seconds]]`; None: no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1", "0", "0:0", "00:00:00"):
        return None
    match = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", text.strip(), re.ASCII)
    if match is None:
        raise _No("It must be a time such as 90, 1:30:00 or 2-12:00:00")
    days, parts = match[1], [int(part) for part in match.groups()[1:] if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    total = int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    if not 0 < total <= 10**10:
        raise _No("It must be more than nothing and less than three centuries")
    return total


_UNITS_S: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_HOURS: Final = {"midnight": 0, "noon": 12, "elevenses": 11, "fika": 15, "teatime": 16}


def _instant(text: str, site: Site) -> datetime:
    """A time as sbatch takes it: `now+2hours`, `16:00`, `2026-03-01[T08:00[:00]]`, `noon`, `tomorrow`."""
    here = site.now.astimezone(site.zone)
    match = re.fullmatch(
        r"now(?:\+(\d{1,8})\s*(seconds?|minutes?|hours?|days?|weeks?)?)?", text.strip(), re.ASCII
    )
    if match is not None:
        unit = (match[2] or "second").rstrip("s")
        return site.now + timedelta(seconds=min(int(match[1] or 0) * _UNITS_S[unit], 10**9))
    if text in ("today", "tomorrow"):
        return here + timedelta(days=text == "tomorrow")
    at: time | None = None
    if text in _HOURS:
        at = time(_HOURS[text])
    elif match := re.fullmatch(r"(\d{1,2}):(\d\d)(?::(\d\d))?\s*([AaPp][Mm])?", text, re.ASCII):
        hour = int(match[1]) % 12 + 12 * (match[4].lower() == "pm") if match[4] else int(match[1])
        if hour > 23 or int(match[2]) > 59 or int(match[3] or 0) > 59:
            raise _No("There is no such time of day")
        at = time(hour, int(match[2]), int(match[3] or 0))
    if at is not None:
        then = here.replace(hour=at.hour, minute=at.minute, second=at.second, microsecond=0)
        return then if then > here else then + timedelta(days=1)
    if not re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", text, re.ASCII):
        raise _No("It must be a time such as now+2hours, 16:00 or 2026-03-01T08:00:00")
    try:
        return datetime.fromisoformat(text).replace(tzinfo=site.zone)
    except ValueError:
        raise _No("There is no such day or time") from None


def _array_indices(text: str) -> tuple[list[int], int]:
    """The indices of an array in order, and how many may run at once (0: any number)."""
    listed_part, sign, most = text.partition("%")
    if sign and not re.fullmatch(r"[1-9]\d{0,3}", most, re.ASCII):
        raise _No("After % stands how many may run at once")
    found: set[int] = set()
    for part in listed_part.strip("[]").split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part.strip(), re.ASCII)
        if match is None:
            raise _No("It must be indices such as 0-15, 1,3,7 or 0-20:4, with %4 for four at once")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if step < 1 or last < first:
            raise _No("A range goes up, by steps of at least 1")
        if (last - first) // step >= 10_000:
            raise _No("An array has 10000 jobs at most")
        found.update(range(first, last + 1, step))
    if len(found) > 10_000:
        raise _No("An array has 10000 jobs at most")
    return sorted(found), int(most or 0)


def _as_ranges(indices: list[int]) -> str:
    """Which of the array's indices the first ones stand for."""
    said = ", ".join(str(one) for one in indices[:4])
    return f"in {said}{', ...' if len(indices) > 4 else ''}"
