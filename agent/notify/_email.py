"""E-mail through SMTP."""

from __future__ import annotations

import smtplib
import ssl
from email.message import EmailMessage

from agent.notify._base import DeliveryError, Message, secret_of
from assay.errors import UsageError
from assay.specs import NotifySpec

__all__ = ["EmailNotifier"]

TIMEOUT_S = 15.0


class EmailNotifier:
    """Sends plain text through the configured server: TLS from the start, by STARTTLS, or none."""

    def __init__(self, spec: NotifySpec) -> None:
        self._spec = spec

    def check(self) -> str:
        """See `Notifier.check`."""
        spec = self._spec
        if not (spec.smtp_host and spec.sender and spec.to):
            raise UsageError(f"notify target '{spec.name}' is incomplete", "give it smtp_host, sender and to")
        secret_of(spec.password_env, spec.name)
        return f"{', '.join(spec.to)} through {spec.smtp_host}"

    def send(self, message: Message) -> None:
        """See `Notifier.send`."""
        self.check()
        try:
            with self._connected() as server:
                server.send_message(self._mail(message))
        except smtplib.SMTPResponseException as error:
            text = f"the mail server answers {error.smtp_code}"
            raise DeliveryError(text, again=error.smtp_code < 500) from None
        except smtplib.SMTPRecipientsRefused:
            raise DeliveryError("the mail server refuses all recipients", "check `to`", again=False) from None
        except (smtplib.SMTPException, OSError) as error:
            text = f"mail server {self._spec.smtp_host} cannot be used ({type(error).__name__})"
            raise DeliveryError(text, "check smtp_host, smtp_port and smtp_tls") from None

    def _connected(self) -> smtplib.SMTP:
        spec = self._spec
        host, secure = str(spec.smtp_host), ssl.create_default_context()
        port = spec.smtp_port or {"tls": 465, "starttls": 587, "none": 25}[spec.smtp_tls]
        server: smtplib.SMTP = (
            smtplib.SMTP_SSL(host, port, timeout=TIMEOUT_S, context=secure)
            if spec.smtp_tls == "tls"
            else smtplib.SMTP(host, port, timeout=TIMEOUT_S)
        )
        if spec.smtp_tls == "starttls":
            server.starttls(context=secure)
        password = secret_of(spec.password_env, spec.name)
        if password is not None:
            server.login(spec.smtp_user or spec.sender or "", password)
        return server

    def _mail(self, message: Message) -> EmailMessage:
        mail = EmailMessage()
        mail["From"], mail["To"] = self._spec.sender, ", ".join(self._spec.to)
        mail["Subject"] = " ".join(message.title.split())[:200]  # a header is one line
        mail["Message-ID"] = f"<{message.id}@assay>"
        mail.set_content(f"{message.text}\n\nEvent {message.kind}, {message.at}\n")
        return mail
