// SPDX-License-Identifier: GPL-2.0
/*
 * Lays bytes over the PCI config space of emulated devices, below everything that reads it: the
 * kernel, sysfs, lspci and setpci all see the same card. Commands go, one per write, to
 * /sys/module/fakepci/parameters/set; all numbers are hexadecimal:
 *
 *   config DDDD:BB:DD.F OFFSET SIZE MASK VALUE [KEEP]
 *     OFFSET with a leading '@' counts from the PCI Express capability. Bits of MASK read as
 *     VALUE; of these the bits in KEEP take and keep what is written to them.
 *   bar DDDD:BB:DD.F INDEX ADDRESS SIZE
 *     From its next enumeration on, the device has a 64-bit prefetchable BAR of that size. Nothing
 *     decodes it: it is there to be listed.
 *
 * Ids, classes and BARs show after `remove` and `rescan`. An overlay outlives both, and ends with
 * the kernel: there is no way to unload, so that no bus is left with the operations of a module
 * that is gone.
 */
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>

struct overlay {
	struct list_head list;
	int domain;
	u8 bus, devfn;
	u8 mask[PCI_CFG_SPACE_EXP_SIZE], value[PCI_CFG_SPACE_EXP_SIZE], keep[PCI_CFG_SPACE_EXP_SIZE];
	unsigned int bar;
	u64 bar_address, bar_size;
};

static LIST_HEAD(overlays);	/* entries are only ever added, at the end */
static struct pci_ops *original;

static struct overlay *find(int domain, u8 bus, u8 devfn)
{
	struct overlay *o;

	list_for_each_entry(o, &overlays, list)
		if (o->domain == domain && o->bus == bus && o->devfn == devfn)
			return o;
	return NULL;
}

static int overlay_read(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 *value)
{
	struct overlay *o = find(pci_domain_nr(bus), bus->number, devfn);
	int i, error = original->read(bus, devfn, where, size, value);

	for (i = 0; !error && o && i < size; i++) {
		u32 mask = (u32)o->mask[where + i] << (8 * i);

		*value = (*value & ~mask) | (((u32)o->value[where + i] << (8 * i)) & mask);
	}
	return error;
}

static int overlay_write(struct pci_bus *bus, unsigned int devfn, int where, int size, u32 value)
{
	struct overlay *o = find(pci_domain_nr(bus), bus->number, devfn);
	int i;

	for (i = 0; o && i < size; i++) {
		u8 keep = o->keep[where + i];

		o->value[where + i] = (o->value[where + i] & ~keep) | ((value >> (8 * i)) & keep);
	}
	return original->write(bus, devfn, where, size, value);
}

static struct pci_ops overlay_ops = { .read = overlay_read, .write = overlay_write };

static void put(struct overlay *o, unsigned int offset, unsigned int size, u32 mask, u32 value, u32 keep)
{
	for (; size--; offset++, mask >>= 8, value >>= 8, keep >>= 8) {
		o->mask[offset] |= mask;
		o->value[offset] = (o->value[offset] & ~mask) | (value & mask);
		o->keep[offset] = (o->keep[offset] & ~mask) | (keep & mask);
	}
}

/* A BAR is laid over after the kernel has sized the real ones and taken away before it does so again. */
static int device_event(struct notifier_block *block, unsigned long event, void *data)
{
	struct pci_dev *dev = to_pci_dev(data);
	struct overlay *o = find(pci_domain_nr(dev->bus), dev->bus->number, dev->devfn);
	unsigned int offset;

	if (!o || !o->bar_size)
		return NOTIFY_DONE;
	offset = PCI_BASE_ADDRESS_0 + 4 * o->bar;
	if (event == BUS_NOTIFY_ADD_DEVICE) {
		struct resource *bar = &dev->resource[o->bar];

		bar->start = o->bar_address;
		bar->end = o->bar_address + o->bar_size - 1;
		/* Fixed: the kernel neither looks for room for it nor complains that there is none. */
		bar->flags = IORESOURCE_MEM | IORESOURCE_PREFETCH | IORESOURCE_MEM_64 | IORESOURCE_PCI_FIXED;
		put(o, offset, 4, ~0, lower_32_bits(o->bar_address) | 0xc, 0);
		put(o, offset + 4, 4, ~0, upper_32_bits(o->bar_address), 0);
	} else if (event == BUS_NOTIFY_DEL_DEVICE) {
		memset(o->mask + offset, 0, 8);
	}
	return NOTIFY_OK;
}

static struct notifier_block device_events = { .notifier_call = device_event };

static int set(const char *text, const struct kernel_param *param)
{
	unsigned int domain, bus, slot, function, size = 0, mask, value, keep = 0, bar;
	u64 bar_address, bar_size = 0;
	int offset, from_capability;
	struct overlay *o;

	from_capability = sscanf(text, "config %x:%x:%x.%x @%x %x %x %x %x", &domain, &bus, &slot, &function,
				 &offset, &size, &mask, &value, &keep) >= 8;
	if (!from_capability &&
	    sscanf(text, "config %x:%x:%x.%x %x %x %x %x %x", &domain, &bus, &slot, &function,
		   &offset, &size, &mask, &value, &keep) < 8 &&
	    sscanf(text, "bar %x:%x:%x.%x %x %llx %llx", &domain, &bus, &slot, &function,
		   &bar, &bar_address, &bar_size) != 7)
		return -EINVAL;
	if (bar_size ? bar > 4 : size > 4)
		return -EINVAL;
	if (from_capability) {
		struct pci_dev *dev = pci_get_domain_bus_and_slot(domain, bus, PCI_DEVFN(slot, function));

		if (!dev)
			return -ENODEV;
		offset += pci_pcie_cap(dev);
		pci_dev_put(dev);
	}
	if (!bar_size && (offset < 0 || offset + size > PCI_CFG_SPACE_EXP_SIZE))
		return -EINVAL;

	o = find(domain, bus, PCI_DEVFN(slot, function));
	if (!o) {
		o = kzalloc(sizeof(*o), GFP_KERNEL);
		if (!o)
			return -ENOMEM;
		o->domain = domain;
		o->bus = bus;
		o->devfn = PCI_DEVFN(slot, function);
		list_add_tail_rcu(&o->list, &overlays);
	}
	if (bar_size) {
		o->bar = bar;
		o->bar_address = bar_address;
		o->bar_size = bar_size;
	} else {
		put(o, offset, size, mask, value, keep);
	}
	return 0;
}

static const struct kernel_param_ops set_ops = { .set = set };
module_param_cb(set, &set_ops, NULL, 0200);

static void hook(struct pci_bus *bus)
{
	struct pci_bus *child;

	pci_bus_set_ops(bus, &overlay_ops);
	list_for_each_entry(child, &bus->children, node)
		hook(child);
}

static int __init fakepci_init(void)
{
	struct pci_bus *bus = NULL;

	/* On x86 all buses share one set of operations; a bus that is found later takes its parent's. */
	pci_lock_rescan_remove();
	while ((bus = pci_find_next_bus(bus))) {
		if (!original)
			original = bus->ops;
		hook(bus);
	}
	pci_unlock_rescan_remove();
	return bus_register_notifier(&pci_bus_type, &device_events);
}
module_init(fakepci_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("overlay over PCI config space, for tests");
