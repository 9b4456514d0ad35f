"""The small parts of pages that need more than a template: icons, bars, badges and links that keep the query."""

import json
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import urlencode

from django import template
from django.http import HttpRequest
from django.templatetags.static import static
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from apps.dashboard import words
from apps.events.models import Event
from apps.inventory.models import Node
from apps.jobs.models import Job

register = template.Library()

_LONGEST_VALUE: Final = 80
SPRITE: Final = "vendor/tabler-icons-3.52.0/icons.svg"


@register.simple_tag
def icon(name: str, tone: str = "") -> SafeString:
    """One icon of the sprite. It says nothing by itself: a word stands beside it or in the label of its button."""
    return format_html(
        '<svg class="icon {}" aria-hidden="true"><use href="{}#{}"/></svg>', tone, static(SPRITE), name
    )


@register.simple_tag
def badge(label: str, icon_name: str = "", tone: str = "") -> SafeString:
    return format_html(
        '<span class="badge {}">{}{}</span>', tone, icon(icon_name) if icon_name else "", label
    )


def _word(word: words.Word) -> SafeString:
    return badge(word.label, word.icon, word.tone)


@register.simple_tag
def job_badges(job: Job) -> SafeString:
    """The state of a job, and what else is true of it: held, or asked to stop."""
    main = words.HELD if job.state == "queued" and job.is_held else words.STATES[job.state]
    shown = [_word(main)]
    if job.desired_stop_at is not None and job.ended_at is None:
        shown.append(_word(words.STOPPING))
    return format_html_join(" ", "{}", ((one,) for one in shown))


@register.simple_tag
def health_badge(node: Node) -> SafeString:
    return _word(words.HEALTH[node.health])


@register.simple_tag
def event_icon(event: Event) -> SafeString:
    return icon(words.event_icon(event.kind))


@register.filter
def reason_icon(code: str) -> str:
    return words.reason(code).icon


@register.filter
def reason_colour(code: str) -> str:
    tile = words.reason(code).tile
    return next(one.colour for one in words.TILES if one.key == tile)


@register.filter
def reason_title(code: str) -> str:
    return words.reason(code).title


@register.filter
def reason_who(code: str) -> str:
    return words.reason(code).who_can_act


@register.filter
def tier(flexibility: object) -> str:
    return words.tier(flexibility)


@register.simple_tag
def bar(
    parts: Iterable[tuple[str, float]],
    total: float,
    label: str,
    marks: Sequence[float] = (),
    tall: bool = False,
) -> SafeString:
    """A bar of coloured parts, with marks at limits; drawn as SVG, because a style attribute is not allowed.

    Args:
        parts: Pairs of a chart colour and an amount, in the unit of `total`.
        total: What the whole length stands for.
        label: What it shows, as a sentence.
        marks: Amounts at which a thin line stands.
    """
    scale = 100 / total if total > 0 else 0
    rects, at = [], 0.0
    for colour, amount in parts:
        width = min(100 - at, max(0.0, float(amount)) * scale)
        if width > 0:
            rects.append((f"{at:.2f}", f"{width:.2f}", f"fill-{colour}"))
            at += width
    rects += [(f"{min(99.2, mark * scale):.2f}", "0.8", "fill-text") for mark in marks if scale]
    drawn = format_html_join("", '<rect x="{}" y="0" width="{}" height="10" class="{}"/>', rects)
    return format_html(
        '<svg class="bar{}" viewBox="0 0 100 10" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>',
        " tall" if tall else "",
        label,
        drawn,
    )


@register.simple_tag(takes_context=True)
def query(context: template.Context, **changes: object) -> str:
    """The query string of this page with some of it changed; an empty value drops its key, and so does a new page."""
    request = context["request"]
    assert isinstance(request, HttpRequest)
    kept = {
        key: value
        for key, value in request.GET.items()
        if key not in changes and key not in ("after", "page")
    }
    kept |= {key: str(value) for key, value in changes.items() if value not in (None, "", False)}
    return f"?{urlencode(kept)}" if kept else "?"


@register.filter
def event_words(kind: str) -> str:
    """`job.stop_requested` as `Job: stop requested`."""
    subject, _, what = kind.partition(".")
    return f"{subject.replace('_', ' ').capitalize()}: {what.replace('_', ' ')}" if what else kind


@register.filter
def end_words(code: str) -> str:
    """The stable code of an end as a sentence."""
    return words.ENDS.get(code, code.replace("_", " "))


@register.simple_tag
def change_words(event: Event) -> str:
    """Before and after of an audited change, only what differs."""
    before, after = event.before, event.after
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [key for key in sorted(before.keys() | after.keys()) if before.get(key) != after.get(key)]
        return "; ".join(f"{key} {_short(before.get(key))} → {_short(after.get(key))}" for key in keys)
    return _short(after) if after else ""


def _short(value: object) -> str:
    text = "–" if value in (None, "") else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


@register.simple_tag
def bar_pair(amount: float, whole: float, label: str) -> SafeString:
    """A bar of an amount against a whole, with what is above it in another colour and a mark at the whole."""
    over = max(0.0, float(amount) - float(whole))
    parts = (("blue", float(amount) - over), ("orange", over))
    return bar(parts, max(float(amount), float(whole)) * 1.02, label, (float(whole),))


@register.filter
def initials(name: str) -> str:
    """Two letters for the round picture of a person."""
    pieces = name.split()
    letters = pieces[0][:1] + pieces[-1][:1] if len(pieces) > 1 else name[:2]
    return letters.upper()


@register.filter
def get(mapping: dict[object, object], key: object) -> object:
    """`{{ mapping|get:key }}`: a lookup by a key that a template cannot write."""
    return mapping.get(key)
