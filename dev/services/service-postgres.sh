# PostgreSQL from Debian, the newest that is installed. One database 'restante'; user and password are 'restante' too.
# It speaks TLS, too, with a certificate of an authority for tests. The user restante_tls (password restante) may connect by TLS
# only, restante_certificate by its client certificate only.
# Its settings are PostgreSQL's own except for those below: it syncs as in production, so that measurements are realistic.
# shellcheck shell=bash
: "${RESTANTE_POSTGRES_SHARED_BUFFERS:=256MB}"

PG_BIN=
postgres_find() {
  local newest
  newest=$(compgen -G '/usr/lib/postgresql/*/bin/initdb' | sort -V | tail -n 1)
  PG_BIN=$(dirname "$newest")
  [ -n "$newest" ] && [ -x "$PG_BIN/postgres" ] && [ -x "$PG_BIN/psql" ]
}
postgres_install() { need_debian postgres_find postgresql; }

postgres_start() {
  local d run=$RUN/postgres
  d=$DATA/postgres/$(basename "$(dirname "$PG_BIN")") # a major version doesn't read another's files
  need_free_ports postgres "$PORT" 1
  printf 'restante\n' >"$DATA/postgres/password"
  make_certificates "$DATA/postgres/tls"
  plain_user postgres
  if [ ! -f "$d/PG_VERSION" ]; then
    rm -rf "$d"
    "${PLAIN[@]}" "$PG_BIN/initdb" -D "$d" -U restante --pwfile="$DATA/postgres/password" -A scram-sha-256 \
      -E UTF8 --locale=C --no-instructions >>"$run/log" 2>&1 || show_log_and_die postgres "initdb failed"
    sed -i '1i hostssl all restante_certificate all cert\nhostnossl all restante_tls all reject' "$d/pg_hba.conf"
  fi
  # No Unix socket: its path may be longer than the 107 bytes that the kernel accepts.
  spawn postgres "${PLAIN[@]}" "$PG_BIN/postgres" -D "$d" -p "$PORT" -h 127.0.0.1 -c unix_socket_directories= \
    -c ssl=on -c ssl_cert_file="$DATA/postgres/tls/server.pem" -c ssl_key_file="$DATA/postgres/tls/server.key" \
    -c ssl_ca_file="$DATA/postgres/tls/ca.pem" -c shared_buffers="$RESTANTE_POSTGRES_SHARED_BUFFERS" -c max_connections=200 -c max_wal_size=1GB
  wait_ready postgres
  postgres_sql template1 "select 1 from pg_database where datname='restante'" | grep -q 1 ||
    postgres_sql template1 'create database restante' >/dev/null
  postgres_sql template1 "select 1 from pg_roles where rolname='restante_tls'" | grep -q 1 ||
    postgres_sql restante "create role restante_tls login password 'restante'; create role restante_certificate login;
      grant create on database restante to restante_tls, restante_certificate" >/dev/null
}

postgres_sql() { PGPASSWORD=restante "$PG_BIN/psql" -XAtq -h 127.0.0.1 -p "$PORT" -U restante -d "$1" -c "$2"; }
postgres_ready() { postgres_sql template1 'select 1'; }
postgres_stop() { stop_pid postgres INT 60; } # INT: end the sessions, write everything, stop
postgres_env() {
  echo "export RESTANTE_POSTGRES_URL=postgres://restante:restante@127.0.0.1:$PORT/restante"
  echo "export RESTANTE_POSTGRES_TLS=$DATA/postgres/tls"
}
