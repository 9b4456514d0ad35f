"""Notices by e-mail, where the site has a server to send them with."""

import smtplib

from django.conf import settings
from django.core.mail import EmailMessage

from apps.core.errors import OutsideError


class MailFailed(OutsideError):
    """The message was not taken."""


def can_send() -> bool:
    """Whether whoever runs the site has named a server for mail."""
    return bool(settings.EMAIL_HOST)


def send_text(address: str, *, subject: str, text: str) -> None:
    """Send one message; raises MailFailed."""
    message = EmailMessage(
        f"[Switchyard] {subject}", text, to=[address], headers={"Auto-Submitted": "auto-generated"}
    )
    try:
        message.send()
    except smtplib.SMTPRecipientsRefused:
        raise MailFailed("The server refuses this address.", permanent=True) from None
    except (OSError, smtplib.SMTPException) as error:
        # What a server says may name people and rooms; its kind is enough to look further.
        raise MailFailed(f"The server for mail could not be used ({type(error).__name__}).") from None
