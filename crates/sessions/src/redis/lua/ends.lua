-- How sessions end. Follows names.lua.

-- Seconds for which a node may be disconnected and still learn which of its sessions others have ended.
local MAIL_SECONDS = 86400
-- The most entries for one node; a node with more of them is long dead.
local MAIL_MAX = 10000

local function unlist(id) return redis.call('HDEL', index_key(node_of(id)), field_of(id)) end

-- Removes a session, but not one that has replaced it. Returns 1 if it existed.
local function drop(user, resource, id)
  local key = user_key(user)
  local row = redis.call('HGET', key, resource)
  if row and id_of(row) == id then
    redis.call('HDEL', key, resource)
    if redis.call('EXISTS', key) == 0 then redis.call('ZREM', prefix .. 'users', user) end
  end
  return unlist(id)
end

-- Notifies a node that another has ended its session: by a message, and by an entry in case that it is disconnected now.
local function notify(node, id, why)
  local mail = prefix .. 'mail:' .. node
  if redis.call('HLEN', mail) < MAIL_MAX then redis.call('HSET', mail, field_of(id), why) end
  redis.call('EXPIRE', mail, MAIL_SECONDS)
  redis.call('PUBLISH', prefix .. 'to:' .. node, id .. why)
end

