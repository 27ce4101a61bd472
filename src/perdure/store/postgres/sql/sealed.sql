-- Run where a store with data is encrypted in place (`perdure keys seal`), in that transaction: from then on
-- the tables take sealed rows only, whoever writes. A process that took the store for a plain one may be
-- connected still, or come back. Tables that only change with one of these need no guard of their own.
-- Sealed bytes begin with 0xC1, a sealed text with "sealed:"; see src/perdure/sealing.
CREATE OR REPLACE FUNCTION @.refuse_plain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this store was encrypted meanwhile; % takes nothing in plain', TG_TABLE_NAME
        USING ERRCODE = 'PD002';
END
$$;
CREATE OR REPLACE FUNCTION @.is_plain(body bytea) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT substring(body FROM 1 FOR 1) IS DISTINCT FROM '\xc1'::bytea
$$;
CREATE OR REPLACE TRIGGER sealed BEFORE INSERT ON @.frames FOR EACH ROW
    WHEN (@.is_plain(NEW.body)) EXECUTE FUNCTION @.refuse_plain();
CREATE OR REPLACE TRIGGER sealed BEFORE INSERT ON @.pages FOR EACH ROW
    WHEN (@.is_plain(NEW.body)) EXECUTE FUNCTION @.refuse_plain();
CREATE OR REPLACE TRIGGER sealed BEFORE INSERT OR UPDATE OF input_wire ON @.schedules FOR EACH ROW
    WHEN (@.is_plain(NEW.input_wire)) EXECUTE FUNCTION @.refuse_plain();
CREATE OR REPLACE TRIGGER sealed BEFORE INSERT OR UPDATE ON @.tags FOR EACH ROW
    WHEN (NEW.name NOT LIKE 'sealed:%') EXECUTE FUNCTION @.refuse_plain();
-- The store itself makes the messages of decisions, and of starts that cancel; who decided is sealed.
CREATE OR REPLACE TRIGGER sealed BEFORE INSERT ON @.mail FOR EACH ROW
    WHEN (NEW.sender <> '' AND NEW.sender NOT LIKE 'sealed:%'
        OR NEW.kind NOT IN ('decision', 'cancel') AND @.is_plain(NEW.body_wire))
    EXECUTE FUNCTION @.refuse_plain();
