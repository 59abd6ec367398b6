# RabbitMQ from Debian, with the management plugin. User and password are 'restante'. Its programs are called directly:
# Debian's wrappers in sbin switch to the user 'rabbitmq' and write to /var.
# Ports: AMQP, management, Erlang's distribution, epmd.
# shellcheck shell=bash
RABBIT_BIN=/usr/lib/rabbitmq/bin

rabbitmq_install() {
  need_debian "have $RABBIT_BIN/rabbitmq-server" rabbitmq-server
}

rabbitmq_start() {
  local run=$RUN/rabbitmq d=$DATA/rabbitmq interrupted=''
  need_free_ports rabbitmq "$PORT" 3
  rabbitmq_end_epmd # one that a killed broker left behind
  need_free_ports rabbitmq $((PORT + 3)) 1
  mkdir -p "$d/home" "$d/mnesia" "$run/log.d" "$run/generated"
  cat >"$run/rabbitmq.conf" <<CONF
listeners.tcp.1 = 127.0.0.1:$PORT
management.tcp.ip = 127.0.0.1
management.tcp.port = $((PORT + 1))
default_user = restante
default_pass = restante
log.console = true
log.console.level = warning
log.file = false
vm_memory_high_watermark.absolute = 1GB
disk_free_limit.absolute = 500MB
CONF
  # What can't be set above: if the queue of dead messages did not accept one, it is retried after this time, not after three
  # minutes.
  echo '[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 5000}]}].' >"$run/advanced.config"
  echo '[rabbitmq_management].' >"$run/enabled_plugins"
  rm -f "$run/beam.pid"
  # `spawn` can't be used: the start script remains as parent of the Erlang VM, and the pid to record is the VM's
  # own, which it writes to RABBITMQ_PID_FILE. As there, a signal is handled once the pid is recorded.
  trap 'interrupted=1' INT TERM HUP
  rabbitmq_environment setsid $RABBIT_BIN/rabbitmq-server </dev/null >>"$run/log" 2>&1 9>&- &
  local end=$((SECONDS + 60))
  until [ -s "$run/beam.pid" ]; do
    [ "$SECONDS" -lt "$end" ] || show_log_and_die rabbitmq "the Erlang VM did not write its pid"
    sleep 0.1
  done
  record_pid "$run/pid" "$(cat "$run/beam.pid")"
  trap - INT TERM HUP
  [ -z "$interrupted" ] || exit 130
}

# Everything that would otherwise be in the system's folders, moved.
rabbitmq_environment() {
  local run=$RUN/rabbitmq d=$DATA/rabbitmq
  env HOME="$d/home" RABBITMQ_NODENAME="restante$PORT@localhost" \
    RABBITMQ_MNESIA_BASE="$d/mnesia" RABBITMQ_FEATURE_FLAGS_FILE="$d/mnesia/feature_flags" \
    RABBITMQ_LOG_BASE="$run/log.d" RABBITMQ_LOGS=- RABBITMQ_PID_FILE="$run/beam.pid" \
    RABBITMQ_CONFIG_FILE="$run/rabbitmq.conf" RABBITMQ_ADVANCED_CONFIG_FILE="$run/advanced.config" \
    RABBITMQ_CONF_ENV_FILE="$run/none" RABBITMQ_ENABLED_PLUGINS_FILE="$run/enabled_plugins" \
    RABBITMQ_GENERATED_CONFIG_DIR="$run/generated" RABBITMQ_DIST_PORT=$((PORT + 2)) \
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS='-kernel inet_dist_use_interface {127,0,0,1}' \
    ERL_EPMD_PORT=$((PORT + 3)) ERL_EPMD_ADDRESS=127.0.0.1 "$@"
}

# The broker greets a client's protocol header with a method frame (type 1).
rabbitmq_ready() {
  local first
  exec 3<>"/dev/tcp/127.0.0.1/$PORT" || return 1
  printf 'AMQP\000\000\011\001' >&3
  first=$(timeout 2 head -c 1 <&3 | od -An -tu1 | tr -d ' ')
  exec 3>&-
  [ "$first" = 1 ]
}

rabbitmq_stop() {
  stop_pid rabbitmq TERM 60
  rabbitmq_end_epmd
}

# The Erlang port mapper outlives the broker. The one on this port is used by us only, and it refuses to end while a
# node is registered with it.
rabbitmq_end_epmd() {
  if have epmd && port_open 127.0.0.1 $((PORT + 3)); then
    ERL_EPMD_PORT=$((PORT + 3)) epmd -kill >/dev/null 2>&1 || true
  fi
}
rabbitmq_env() {
  echo "export RESTANTE_RABBITMQ_URL=amqp://restante:restante@127.0.0.1:$PORT/%2f"
  echo "export RESTANTE_RABBITMQ_MANAGEMENT_URL=http://restante:restante@127.0.0.1:$((PORT + 1))"
}
