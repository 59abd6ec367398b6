-- How sessions end. Follows names.lua.

-- Seconds for which a node may be away and still learn which of its sessions others have ended.
local MAIL_SECONDS = 86400
-- Ends that are kept for one node; one that has more of them is long dead.
local MAIL_MAX = 10000

local function unlist(id) return redis.call('HDEL', index_key(node_of(id)), field_of(id)) end

-- Removes a session and nothing that has taken its place. Answers 1 if it was there.
local function drop(user, resource, id)
  local key = user_key(user)
  local row = redis.call('HGET', key, resource)
  if row and id_of(row) == id then
    redis.call('HDEL', key, resource)
    if redis.call('EXISTS', key) == 0 then redis.call('ZREM', prefix .. 'users', user) end
  end
  return unlist(id)
end

-- Tells a node that another has ended its session: at once, and in writing in case that it does not listen just now.
local function tell(node, id, why)
  local mail = prefix .. 'mail:' .. node
  if redis.call('HLEN', mail) < MAIL_MAX then redis.call('HSET', mail, field_of(id), why) end
  redis.call('EXPIRE', mail, MAIL_SECONDS)
  redis.call('PUBLISH', prefix .. 'to:' .. node, id .. why)
end

