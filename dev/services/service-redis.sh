# Redis from Debian, in memory only (no snapshots, no append-only file). Its second port speaks TLS, with a certificate of an
# authority for tests; a client that shows a certificate needs one of the same authority.
# shellcheck shell=bash

redis_install() {
  need_debian "have redis-server" redis-server
  need_debian "have redis-cli" redis-tools
}
redis_start() {
  need_free_ports redis "$PORT" 2
  local tls=$DATA/redis/tls
  make_certificates "$tls"
  spawn redis redis-server --bind 127.0.0.1 --port "$PORT" --dir "$DATA/redis" \
    --tls-port $((PORT + 1)) --tls-cert-file "$tls/server.pem" --tls-key-file "$tls/server.key" \
    --tls-ca-cert-file "$tls/ca.pem" --tls-auth-clients optional --save '' --appendonly no --daemonize no --maxmemory 1gb --maxmemory-policy noeviction
}
redis_ready() { [ "$(redis-cli -h 127.0.0.1 -p "$PORT" ping)" = PONG ]; }
redis_stop() { stop_pid redis TERM 20; }
redis_env() {
  echo "export RESTANTE_REDIS_URL=redis://127.0.0.1:$PORT/0"
  echo "export RESTANTE_REDIS_TLS_URL=rediss://localhost:$((PORT + 1))/0"
  echo "export RESTANTE_REDIS_TLS=$DATA/redis/tls"
}
