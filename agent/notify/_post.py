"""Posting to an address that a person configured, without becoming a way into the own network.

A name is resolved once; every address it has must be public, and the connection goes to that very address,
so that a name that changes its mind between check and use gains nothing. Redirects are not followed, proxies
of the environment are not used, and the answer's body is not read.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

import httpx

from agent.notify._base import DeliveryError
from assay.errors import UsageError

__all__ = ["Address", "checked_url", "post"]

TIMEOUT_S = 10.0
AGAIN = (408, 425, 429)
EMBEDDED = ipaddress.ip_network("64:ff9b::/96")  # IPv4 addresses behind a translator (RFC 6052)

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True)
class Address:
    """A resolved address: where to connect, and what to call it there."""

    url: httpx.URL  # with the address in place of the name
    host: str  # Host header
    name: str  # for TLS


def checked_url(url: str, target: str) -> httpx.URL:
    """A URL that can be posted to.

    Raises:
        UsageError: It is none.
    """
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError):
        parsed = httpx.URL("")
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise UsageError(f"notify target '{target}': its URL cannot be read", "write https://host/path")
    if parsed.userinfo:
        raise UsageError(
            f"notify target '{target}': its URL holds a password", "put the whole URL into url_env instead"
        )
    return parsed


def resolve(url: httpx.URL, *, allow_private: bool) -> Address:
    """Resolve a URL's host once.

    Raises:
        DeliveryError: It does not resolve, or to an address that is not public.
    """
    port = url.port or (443 if url.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(url.host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise DeliveryError(f"host {url.host} does not resolve", "check the target's URL") from None
    addresses = [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]
    if not allow_private and not all(map(is_public, addresses)):
        raise DeliveryError(
            f"host {url.host} has an address that is not public",
            "set allow_private = true for a target in your own network",
            again=False,
        )
    return Address(url.copy_with(host=str(addresses[0])), url.netloc.decode("ascii"), url.host)


def is_public(address: Ip) -> bool:
    """Whether an address, and any that is wrapped in it, is reachable from anywhere."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if address in EMBEDDED:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast and not address.is_reserved


def post(url: httpx.URL, body: bytes, headers: dict[str, str], *, allow_private: bool) -> None:
    """Post JSON.

    Raises:
        DeliveryError: It was not taken; says whether another try may help.
    """
    address = resolve(url, allow_private=allow_private)
    sent = {"Content-Type": "application/json", "User-Agent": "assay", **headers, "Host": address.host}
    try:
        with (
            httpx.Client(trust_env=False, follow_redirects=False, timeout=TIMEOUT_S) as client,
            client.stream(
                "POST",
                address.url,
                content=body,
                headers=sent,
                extensions={"sni_hostname": address.name},
            ) as answer,
        ):
            status = answer.status_code
    except (httpx.HTTPError, OSError) as error:
        raise DeliveryError(f"host {url.host} cannot be reached ({type(error).__name__})") from None
    if 300 <= status < 400:
        raise DeliveryError(
            f"host {url.host} answers {status}: redirects are not followed",
            "write the final address",
            again=False,
        )
    if not 200 <= status < 300:
        raise DeliveryError(f"host {url.host} answers {status}", again=status >= 500 or status in AGAIN)
