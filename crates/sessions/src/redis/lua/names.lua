-- Names of keys, and what rows and indexes are made of: see schema.rs. Every script begins with the prefix.
local prefix = ARGV[1]

local function id_of(row) return string.sub(row, 1, 16) end
local function node_of(id) return string.format('%.0f', (struct.unpack('>I4', id, 9))) end
local function field_of(id) return string.sub(id, 1, 8) .. string.sub(id, 13, 16) end

local function user_key(user) return prefix .. 'u:' .. user end
local function index_key(node) return prefix .. 'n:' .. node end

local function place_of(packed)
  if #packed < 2 then return '', '' end
  local high, low = string.byte(packed, 1, 2)
  local bytes = high * 256 + low
  return string.sub(packed, 3, 2 + bytes), string.sub(packed, 3 + bytes)
end

-- Milliseconds that a lease still runs. In its last one the key is still there: for all scripts the lease has run out by then.
local function lease_ms(node) return math.max(redis.call('PTTL', prefix .. 'lease:' .. node), 0) end
local function lives(node) return lease_ms(node) > 0 end

