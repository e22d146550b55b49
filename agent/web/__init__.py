"""The web page: what the running agent does and found, server-rendered, readable without JavaScript."""

from agent.web._app import create_app, serve
from agent.web._static_page import static_page

__all__ = ["create_app", "serve", "static_page"]
