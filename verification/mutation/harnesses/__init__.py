"""The harnesses of the project as rounds: each module names the tests whose checks it uses."""
