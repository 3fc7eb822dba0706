"""serve: a checkpoint on a vLLM server, for samplers and teachers elsewhere."""

from __future__ import annotations

from contextlib import suppress

import click

from pipelines.cli import options as common
from pipelines.cli.options import Session, shared


@click.command("serve")
@click.argument("checkpoint")
@common.host
@click.option(
    "--port",
    default=8000,
    show_default=True,
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="port to listen on; 0: any free one",
)
@click.option(
    "--beyond-this-machine",
    "beyond",
    is_flag=True,
    help="listen on an address that other machines reach; needs VLLM_API_KEY",
)
@click.option(
    "--lora", type=click.IntRange(0), metavar="RANK", help="accept a student's adapter of up to this rank"
)
@shared
@click.pass_obj
def serve_command(
    session: Session, checkpoint: str, host: str, port: int, beyond: bool, lora: int | None
) -> None:
    """Serve a checkpoint with vLLM until interrupted.

    Give the printed URL to --sampler or --teacher-engine. With VLLM_API_KEY set, every request needs that
    key.
    """
    with session.workspace() as ws:
        from pipelines.engines.engine_places import serve

        with serve(ws, checkpoint, host=host, port=port, rank=lora or 0, beyond=beyond) as server:
            found = {"url": server.url, "checkpoint": server.name, "log": str(server.log)}
            session.show(found, f"{server.url} serves {server.name}; its log is {server.log}")
            with suppress(KeyboardInterrupt):  # the way to end it
                server.wait()
