"""The ``icecore`` command line; ``main`` is its entry point."""


def main() -> None:
    """Run the command line and end the process with its status."""
    from icecore.extras import as_one_line

    with as_one_line("icecore", "cli"):
        from icecore.cli.app import main as run  # other modules here are used without typer's app

        run()
