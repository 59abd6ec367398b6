-- Names of keys, and the parts of rows and indexes: see schema.rs. The first argument of every script is the prefix.
local prefix = ARGV[1]

local function id_of(row) return string.sub(row, 1, 16) end
local function node_of(id) return string.format('%.0f', (struct.unpack('>I4', id, 9))) end
local function field_of(id) return string.sub(id, 1, 8) .. string.sub(id, 13, 16) end

local function user_key(user) return prefix .. 'u:' .. user end
local function index_key(node) return prefix .. 'n:' .. node end

local function location_of(packed)
  if #packed < 2 then return '', '' end
  local high, low = string.byte(packed, 1, 2)
  local bytes = high * 256 + low
  return string.sub(packed, 3, 2 + bytes), string.sub(packed, 3 + bytes)
end

-- Milliseconds until a lease expires. In its last millisecond the key still exists, but all scripts treat it as expired.
local function lease_ms(node) return math.max(redis.call('PTTL', prefix .. 'lease:' .. node), 0) end
local function is_alive(node) return lease_ms(node) > 0 end

