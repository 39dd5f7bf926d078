// SPDX-License-Identifier: GPL-2.0
/*
 * Stands in for Intel's xe driver where there is no such GPU: takes the same PCI id, has the same
 * module name, registers a DRM device with a render node, sleeps when it may, makes device core
 * dumps, and says in the kernel log what the real one says. Nothing can be computed with it.
 *
 *   /sys/module/xe/parameters/touched    how often the driver was called into: opened nodes and
 *                                        driver attributes read
 *   /sys/module/xe/parameters/coredump   write BDF: an engine reset with a core dump
 *   /sys/module/xe/parameters/log        write "BDF TEXT": a kernel error line of that device
 *
 * The wording is that of the driver in Linux 6.12 (drivers/gpu/drm/xe: xe_guc_submit.c,
 * xe_devcoredump.c, xe_uc_fw.c).
 */
#include <generated/utsrelease.h>
#include <drm/drm_drv.h>
#include <drm/drm_file.h>
#include <drm/drm_ioctl.h>
#include <linux/devcoredump.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/pm_runtime.h>
#include <linux/version.h>
#include <linux/vmalloc.h>

static unsigned int touched;
module_param(touched, uint, 0444);

static int xe_open(struct drm_device *drm, struct drm_file *file)
{
	touched++;
	return 0;
}

static const struct file_operations xe_fops = {
	.owner = THIS_MODULE,
	.open = drm_open,
	.release = drm_release,
	.unlocked_ioctl = drm_ioctl,
	.poll = drm_poll,
	.read = drm_read,
	.llseek = noop_llseek,
#ifdef FOP_UNSIGNED_OFFSET
	.fop_flags = FOP_UNSIGNED_OFFSET,	/* asked for since 6.12 */
#endif
};

static const struct drm_driver xe_drm = {
	.driver_features = DRIVER_RENDER,
	.open = xe_open,
	.fops = &xe_fops,
	.name = "xe",
	.desc = "Intel Xe Graphics",
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
	.date = "20201103",
#endif
	.major = 1,
	.minor = 1,
};

static ssize_t auto_link_downgrade_capable_show(struct device *dev, struct device_attribute *attr, char *text)
{
	touched++;
	return sysfs_emit(text, "1\n");
}
static DEVICE_ATTR_RO(auto_link_downgrade_capable);

static ssize_t auto_link_downgrade_status_show(struct device *dev, struct device_attribute *attr, char *text)
{
	touched++;
	return sysfs_emit(text, "0\n");
}
static DEVICE_ATTR_RO(auto_link_downgrade_status);

static struct attribute *xe_attrs[] = {
	&dev_attr_auto_link_downgrade_capable.attr,
	&dev_attr_auto_link_downgrade_status.attr,
	NULL,
};
ATTRIBUTE_GROUPS(xe);

static int xe_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct drm_device *drm = drm_dev_alloc(&xe_drm, &pci->dev);
	int error;

	if (IS_ERR(drm))
		return PTR_ERR(drm);
	pci_set_drvdata(pci, drm);
	dev_info(&pci->dev, "[drm] Using GuC firmware from xe/bmg_guc_70.bin version 70.65.0\n");
	error = drm_dev_register(drm, 0);
	if (error) {
		drm_dev_put(drm);
		return error;
	}
	/* As for any PCI device the card stays awake until power/control is set to auto. */
	pm_runtime_set_autosuspend_delay(&pci->dev, 1000);
	pm_runtime_use_autosuspend(&pci->dev);
	pm_runtime_mark_last_busy(&pci->dev);
	pm_runtime_put_autosuspend(&pci->dev);
	return 0;
}

static void xe_remove(struct pci_dev *pci)
{
	struct drm_device *drm = pci_get_drvdata(pci);

	pm_runtime_get_sync(&pci->dev);
	pm_runtime_dont_use_autosuspend(&pci->dev);
	drm_dev_unplug(drm);
	drm_dev_put(drm);
}

/*
 * A sleeping card is in D3cold, as the real ones are where the platform can cut their power. Only then
 * does the kernel wake a device to read its config space (drivers/pci/access.c, pci_config_pm_runtime_get).
 */
static int xe_suspend(struct device *dev)
{
	struct pci_dev *pci = to_pci_dev(dev);

	pci_save_state(pci);
	pci_set_power_state(pci, PCI_D3hot);
	pci->current_state = PCI_D3cold;
	return 0;
}

static int xe_resume(struct device *dev)
{
	return 0;
}

static const struct dev_pm_ops xe_pm = { SET_RUNTIME_PM_OPS(xe_suspend, xe_resume, NULL) };

static const struct pci_device_id xe_ids[] = { { PCI_VDEVICE(INTEL, 0xe223) }, {} };
MODULE_DEVICE_TABLE(pci, xe_ids);

static struct pci_driver xe_pci = {
	.name = "xe",
	.id_table = xe_ids,
	.probe = xe_probe,
	.remove = xe_remove,
	.driver.pm = &xe_pm,
	.dev_groups = xe_groups,
};
module_pci_driver(xe_pci);

/* The device that the first word of text names, and where the rest begins; to be put again. */
static struct device *named_device(const char *text, const char **rest)
{
	char name[32];
	size_t length = strcspn(text, " \n");

	if (length >= sizeof(name))
		return NULL;
	strscpy(name, text, length + 1);
	*rest = text + length + strspn(text + length, " ");
	return bus_find_device_by_name(&pci_bus_type, NULL, name);
}

static int set_log(const char *text, const struct kernel_param *param)
{
	const char *line;
	struct device *dev = named_device(text, &line);

	if (!dev)
		return -ENODEV;
	dev_err(dev, "[drm] %.*s\n", (int)strcspn(line, "\n"), line);
	put_device(dev);
	return 0;
}

static const struct kernel_param_ops log_ops = { .set = set_log };
module_param_cb(log, &log_ops, NULL, 0200);

static int set_coredump(const char *text, const struct kernel_param *param)
{
	static const char dump[] =
		"**** Xe Device Coredump ****\n"
		"Reason: Timedout job - seqno=4294967169, lrc_seqno=4294967169, guc_id=3, flags=0x0\n"
		"kernel: " UTS_RELEASE "\nmodule: xe\nSnapshot time: 1.000000000\nUptime: 2.000000000\n"
		"Process: python3 [1234]\nPID: 1234\n";
	const char *rest;
	struct device *dev = named_device(text, &rest);
	struct drm_device *drm;
	void *data;

	if (!dev)
		return -ENODEV;
	drm = dev->driver == &xe_pci.driver ? dev_get_drvdata(dev) : NULL;
	data = drm ? vmalloc(sizeof(dump) - 1) : NULL;
	if (!data) {
		put_device(dev);
		return drm ? -ENOMEM : -ENODEV;
	}
	memcpy(data, dump, sizeof(dump) - 1);
	dev_notice(dev, "[drm] GT0: Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=3, flags=0x0 in python3 [1234]\n");
	dev_info(dev, "[drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=3\n");
	dev_info(dev, "[drm] Xe device coredump has been created\n");
	dev_info(dev, "[drm] Check your /sys/class/drm/card%d/device/devcoredump/data\n", drm->primary->index);
	dev_coredumpv(dev, data, sizeof(dump) - 1, GFP_KERNEL);
	put_device(dev);
	return 0;
}

static const struct kernel_param_ops coredump_ops = { .set = set_coredump };
module_param_cb(coredump, &coredump_ops, NULL, 0200);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("stand-in for the Intel Xe driver, for tests");
