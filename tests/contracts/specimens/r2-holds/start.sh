#!/bin/sh
set -e
echo "starting"
exec uvicorn app:app --host 0.0.0.0 --port "${PORT:-8000}" --timeout-graceful-shutdown 5
