"""The demo: a small simulated world, evaluated by the real agent through real workers and a real endpoint."""

from agent.demo._run import DemoResult, run_demo

__all__ = ["DemoResult", "run_demo"]
