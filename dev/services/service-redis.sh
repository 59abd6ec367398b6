# Redis from Debian, in memory only (no snapshots, no append-only file).
# shellcheck shell=bash

redis_install() {
  need_debian "have redis-server" redis-server
  need_debian "have redis-cli" redis-tools
}
redis_start() {
  need_free_ports redis "$PORT" 1
  spawn redis redis-server --bind 127.0.0.1 --port "$PORT" --dir "$DATA/redis" \
    --save '' --appendonly no --daemonize no --maxmemory 1gb --maxmemory-policy noeviction
}
redis_ready() { [ "$(redis-cli -h 127.0.0.1 -p "$PORT" ping)" = PONG ]; }
redis_stop() { stop_pid redis TERM 20; }
redis_env() { echo "export RESTANTE_REDIS_URL=redis://127.0.0.1:$PORT/0"; }
