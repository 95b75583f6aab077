#!/usr/bin/env node
// Starts the program of the package for this platform with the same arguments, streams, signals and exit code.
"use strict";
const { spawn } = require("node:child_process");
const { constants } = require("node:os");

const name = `@exec-server/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/exec-server`);
} catch {
  console.error(
    `exec-server: ${name} is not installed. It is an optional dependency of exec-server for Linux on x64 and arm64: ` +
      "install again without --omit=optional, on a supported platform.",
  );
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
// A terminal sends its signals to both processes, so this one only waits; other signals are passed on.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
for (const signal of ["SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => {
  console.error(`exec-server: cannot start ${program}: ${error.message}`);
  process.exit(126);
});
child.on("exit", (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
